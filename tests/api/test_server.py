"""Starting and closing the server."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.api.server import ApiOptions, ApiServer
from meshinfer.core.fleet import Address
from meshinfer.core.request import Delta, Finished, FinishReason, Started
from meshinfer.errors import UsageError
from tests.api.scripted_door import ScriptedDoor, doing, saying
from tests.api.served import CHAT, CHAT_PATH, LOOPBACK, OPTIONS, read_until, served

STREAM = CHAT | {"stream": True}
FLOOD = [Delta("x" * 100_000, (1,)) for _ in range(200)]
END = Finished(FinishReason.STOP, 3, 1, seconds=1.0, first_token_s=0.1)


def server(options: ApiOptions = OPTIONS) -> ApiServer:
    return ApiServer(ScriptedDoor(saying("ok")), dict, options)


async def test_a_lan_address_needs_a_key() -> None:
    with pytest.raises(UsageError) as caught:
        await server().start(Address("0.0.0.0", 0))
    assert "key" in caught.value.cause
    assert caught.value.remedy


async def test_with_a_key_every_address_is_served() -> None:
    one = server(ApiOptions(key="k"))
    address = await one.start(Address("0.0.0.0", 0))
    await one.close()
    assert address.port > 0


async def test_a_taken_port_is_named() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        with pytest.raises(UsageError) as caught:
            await server().start(api.address)
        assert str(api.address) in caught.value.cause
        assert "taken" in caught.value.cause
        assert "--api" in caught.value.remedy
        assert (await api.get("/health")).status == 200


async def test_an_address_of_another_pc_cannot_be_bound() -> None:
    # 192.0.2.0/24 is reserved for documentation (RFC 5737): no PC has it
    with pytest.raises(UsageError, match="cannot listen"):
        await server(ApiOptions(key="k")).start(Address("192.0.2.1", 0))


async def test_closing_twice_and_before_the_start() -> None:
    one = server()
    await one.close()
    address = await one.start(LOOPBACK)
    await one.close()
    await one.close()
    with pytest.raises(OSError, match=str(address.port)):
        await asyncio.open_connection(address.host, address.port)


async def test_an_idle_connection_does_not_hold_the_close() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api, api.raw(b"") as (reader, _):
        async with asyncio.timeout(1):
            await api.server.close()
            assert await reader.read() == b""


async def test_a_running_answer_may_end_by_itself() -> None:
    gate = asyncio.Event()
    door = ScriptedDoor(doing(Started(3), gate, Delta("ok", (1,)), END))
    async with (
        served(door, ApiOptions(key=None, drain_s=5)) as api,
        api.raw_post(CHAT_PATH, STREAM) as (reader, _),
        asyncio.TaskGroup() as group,
        asyncio.timeout(1),
    ):
        await read_until(reader, b"assistant")
        closing = group.create_task(api.server.close())
        await asyncio.sleep(0)
        with pytest.raises(OSError, match=str(api.address.port)):
            await asyncio.open_connection(api.address.host, api.address.port)
        assert not closing.done()
        gate.set()
        assert b"[DONE]" in await reader.read()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_takes_too_long_is_ended_with_an_error(is_stream: bool) -> None:
    never = asyncio.Event()
    door = ScriptedDoor(doing(Started(3), Delta("he", (1,)), never))
    async with (
        served(door) as api,
        api.raw_post(CHAT_PATH, CHAT | {"stream": is_stream}) as (reader, _),
        asyncio.timeout(1),
    ):
        await door.wait_asked()
        await api.server.close()
        raw = await reader.read()
    assert door.released == 1
    assert raw.startswith(b"HTTP/1.1 200 " if is_stream else b"HTTP/1.1 503 ")
    assert b'"code":"not_ready"' in raw.replace(b'": "', b'":"')
    assert b"[DONE]" not in raw


async def test_a_connection_that_is_open_gets_no_new_answer_while_closing() -> None:
    gate = asyncio.Event()
    door = ScriptedDoor(doing(Started(3), gate, END))
    async with (
        served(door, ApiOptions(key=None, drain_s=5)) as api,
        api.raw_post(CHAT_PATH, STREAM) as (running, _),
        api.raw(b"") as (reader, writer),
        asyncio.TaskGroup() as group,
        asyncio.timeout(1),
    ):
        await read_until(running, b"assistant")
        closing = group.create_task(api.server.close())
        await asyncio.sleep(0)
        writer.write(api.post_bytes(CHAT_PATH, CHAT))
        assert await read_until(reader, b"\r\n") == b"HTTP/1.1 503 Service Unavailable\r\n"
        assert not closing.done()
        gate.set()
    assert len(door.requests) == 1


@pytest.mark.slow
async def test_a_client_that_never_reads_does_not_hold_the_close() -> None:
    door = ScriptedDoor(doing(Started(3), *FLOOD, asyncio.Event()))
    async with served(door) as api, api.raw_post(CHAT_PATH, STREAM), asyncio.timeout(5):
        await door.wait_asked()
        await api.server.close()
        await door.wait_released()


async def test_a_client_that_never_reads_is_cut_off() -> None:
    door = ScriptedDoor(doing(Started(3), *FLOOD, asyncio.Event()))
    options = ApiOptions(key=None, drain_s=0.05, stall_s=0.05)
    async with served(door, options) as api, api.raw_post(CHAT_PATH, STREAM):
        await door.wait_released()
