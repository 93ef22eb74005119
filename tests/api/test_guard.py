"""S01, A20: who may ask."""

from __future__ import annotations

import pytest

from meshinfer.api.guard import check_exposure, is_loopback
from meshinfer.api.options import ApiOptions
from meshinfer.core.fleet import Address
from meshinfer.errors import UsageError
from tests.api.scripted_door import ScriptedDoor, saying
from tests.api.served import CHAT, CHAT_PATH, OPTIONS, STATUS, TEXT_PATH, Served, served

KEY = "SECRETKEY123"
LOCKED = ApiOptions(key=KEY, drain_s=0.05)
PAGE = "https://chat.example"
FOREIGN = "https://evil.example"
ROUTES = [
    "/v1/models",
    "/v1/models/smollm2-135m",
    CHAT_PATH,
    TEXT_PATH,
    "/v1/embeddings",
    "/v1/responses",
    "/meshinfer/v1/status",
    "/metrics",
    "/",
    "/metrics",
    "/no/such/path",
]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.20", False),
        ("localhost.evil.example", False),
        ("fe80::1%eth0", False),
    ],
)
def test_loopback_is_told_from_the_rest(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("host", "options"),
    [
        ("0.0.0.0", ApiOptions(key=None)),
        ("192.168.1.20", ApiOptions(key=None)),
        ("127.0.0.1", ApiOptions(key="")),
        ("0.0.0.0", ApiOptions(key=" ")),
        ("127.0.0.1", ApiOptions(key=None, allowed_origins=("*",))),
    ],
)
def test_an_open_door_is_refused(host: str, options: ApiOptions) -> None:
    with pytest.raises(UsageError) as caught:
        check_exposure(Address(host, 1), options)
    assert caught.value.remedy


def test_a_key_opens_every_address() -> None:
    check_exposure(Address("0.0.0.0", 1), LOCKED)
    check_exposure(Address("127.0.0.1", 1), OPTIONS)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": KEY},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {KEY}4"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY.lower()}"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer schlüssel"},
    ],
)
async def test_without_the_key_nothing_is_open(headers: dict[str, str]) -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door, LOCKED) as api:
        for path in ROUTES:
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
                reply = await api.ask(method, path, headers=headers)
                assert reply.status == 401, (method, path)
                assert reply.error["code"] == "invalid_api_key"
                assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert door.requests == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_key_opens(scheme: str) -> None:
    async with served(ScriptedDoor(saying("ok")), LOCKED) as api:
        headers = {"Authorization": f"{scheme} {KEY}"}
        assert (await api.post(CHAT_PATH, CHAT, headers=headers)).status == 200
        assert (await api.get("/meshinfer/v1/status", headers=headers)).document == STATUS
        assert (await api.get("/no/such/path", headers=headers)).status == 404


async def test_a_key_that_is_not_ascii_opens() -> None:
    async with served(ScriptedDoor(saying("ok")), ApiOptions(key="schlüssel")) as api:
        headers = {"Authorization": "Bearer schlüssel"}
        assert (await api.get("/v1/models", headers=headers)).status == 200


async def test_health_is_open_and_says_nothing() -> None:
    async with served(ScriptedDoor(saying("ok")), LOCKED) as api:
        reply = await api.get("/health", headers={"Host": "balancer.example"})
        assert reply.document == {"status": "ok"}
        assert "aiohttp" not in reply.headers["Server"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:80", "localhost."]
)
async def test_own_names_are_answered_without_a_key(host: str) -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        assert (await api.get("/v1/models", headers={"Host": host})).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.1.2", "", "["])
async def test_a_rebound_name_is_refused(host: str) -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door) as api:
        for method, path in (("GET", "/meshinfer/v1/status"), ("POST", CHAT_PATH)):
            reply = await api.ask(method, path, headers={"Host": host}, json=CHAT)
            assert reply.status == 403
            assert reply.error["code"] == "host_not_allowed"
    assert door.requests == []


async def test_the_bound_address_is_a_name_too() -> None:
    async with served(ScriptedDoor(saying("ok")), address=Address("127.0.0.9", 0)) as api:
        assert (await api.get("/v1/models")).status == 200


@pytest.mark.parametrize("origin", [FOREIGN, "null", "http://127.0.0.1:1", "http://localhost"])
async def test_a_foreign_page_cannot_make_us_work(origin: str) -> None:
    door = ScriptedDoor(saying("ok"))
    async with served(door) as api:
        reply = await api.ask(
            "POST", CHAT_PATH, data="{}", headers={"Origin": origin, "Content-Type": "text/plain"}
        )
        assert reply.status == 403
        assert reply.error["code"] == "origin_not_allowed"
        assert "Access-Control-Allow-Origin" not in reply.headers
    assert door.requests == []


async def test_our_own_page_may_ask() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        assert (await api.post(CHAT_PATH, CHAT, headers={"Origin": api.url})).status == 200


async def preflight(api: Served, origin: str, path: str = CHAT_PATH) -> tuple[int, dict[str, str]]:
    reply = await api.ask(
        "OPTIONS",
        path,
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
            "Access-Control-Request-Private-Network": "true",
        },
    )
    return reply.status, dict(reply.headers)


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("allowed", [PAGE, PAGE + "/", PAGE.upper()])
async def test_preflight_of_an_allowed_page(key: str | None, allowed: str) -> None:
    options = ApiOptions(key=key, allowed_origins=(allowed,))
    async with served(ScriptedDoor(saying("ok")), options) as api:
        for path in (CHAT_PATH, "/v1/models", "/health"):
            status, headers = await preflight(api, PAGE, path)
            assert status == 204
            assert headers["Access-Control-Allow-Origin"] == PAGE
            asked = headers["Access-Control-Allow-Headers"].split(",")
            assert {"authorization", "content-type", "x-stainless-os"} <= set(asked)
            assert "POST" in headers["Access-Control-Allow-Methods"]
            assert headers["Access-Control-Allow-Private-Network"] == "true"


@pytest.mark.parametrize("options", [OPTIONS, ApiOptions(key=None, allowed_origins=(PAGE,))])
async def test_preflight_of_a_foreign_page(options: ApiOptions) -> None:
    async with served(ScriptedDoor(saying("ok")), options) as api:
        status, headers = await preflight(api, FOREIGN)
        assert status >= 400
        assert not [name for name in headers if name.lower().startswith("access-control")]


async def test_an_allowed_page_may_read_answers_and_errors() -> None:
    options = ApiOptions(key=KEY, allowed_origins=(PAGE,))
    async with served(ScriptedDoor(saying("ok")), options) as api:
        key = {"Authorization": f"Bearer {KEY}"}
        for status, path, headers, body in (
            (200, CHAT_PATH, key, CHAT),
            (200, CHAT_PATH, key, CHAT | {"stream": True}),
            (400, CHAT_PATH, key, CHAT | {"n": 17}),
            (404, "/no/such/path", key, {}),
            (401, CHAT_PATH, {}, CHAT),
        ):
            reply = await api.post(path, body, headers=headers | {"Origin": PAGE})
            assert reply.status == status
            assert reply.headers["Access-Control-Allow-Origin"] == PAGE
            assert reply.headers["Vary"] == "Origin"
        reply = await api.get("/v1/models", headers=key | {"Origin": FOREIGN})
        assert "Access-Control-Allow-Origin" not in reply.headers


async def test_a_star_allows_every_page_with_the_key() -> None:
    options = ApiOptions(key=KEY, allowed_origins=("*",))
    async with served(ScriptedDoor(saying("ok")), options) as api:
        assert (await preflight(api, FOREIGN))[1]["Access-Control-Allow-Origin"] == FOREIGN
        assert (await api.get("/v1/models", headers={"Origin": FOREIGN})).status == 401
