"""Who asks: the key's digest, or the address, or what the body says."""

from __future__ import annotations

import pytest

from meshinfer.api.options import ApiOptions
from tests.api.scripted_door import ScriptedDoor, saying
from tests.api.served import CHAT, CHAT_PATH, TEXT, TEXT_PATH, served

KEY = "SECRETKEY123"
ADDRESS = "address:127.0.0.1"


async def askers(door: ScriptedDoor, options: ApiOptions, *headers: dict[str, str]) -> list[str]:
    async with served(door, options) as api:
        for one in headers:
            assert (await api.post(CHAT_PATH, CHAT, headers=one)).status == 200
    return [request.user for request in door.requests]


async def test_one_key_is_one_user_and_stays_secret() -> None:
    header = {"Authorization": f"Bearer {KEY}"}
    first, second = await askers(
        ScriptedDoor(saying("ok")), ApiOptions(key=KEY), header, {"Authorization": f"bearer {KEY} "}
    )
    assert first == second
    assert first.startswith("key:")
    assert KEY not in first
    assert len(first) == 16


async def test_without_a_key_the_address_counts() -> None:
    headers = [{}, {"Authorization": "Bearer "}, {"Authorization": "Basic eA=="}]
    forged = {"X-Forwarded-For": "192.0.2.1"}
    found = await askers(ScriptedDoor(saying("ok")), ApiOptions(key=None), *headers, forged)
    assert found == [ADDRESS] * 4


async def test_programs_with_keys_of_their_own_are_told_apart() -> None:
    headers = [{"Authorization": f"Bearer {key}"} for key in ("a", "b", "schl\u00fcssel")]
    found = await askers(ScriptedDoor(saying("ok")), ApiOptions(key=None), *headers)
    assert len(set(found)) == 3


@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), (TEXT_PATH, TEXT)])
async def test_the_body_says_it_best(path: str, body: dict[str, object]) -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door) as api:
        await api.post(path, body | {"user": "anna"})
        await api.post(path, body)
    assert [request.user for request in door.requests] == ["anna", ADDRESS]
