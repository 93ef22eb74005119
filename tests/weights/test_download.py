from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.errors import MeshInferError, ModelNotFound, ShardCorrupt, TimedOut
from meshinfer.weights.download import Download, Persistence, make_opener
from tests.weights.rude_server import (
    Behaviour,
    RudeServer,
    answer,
    cut_after,
    ignore_range,
    no_length,
    serving,
    stall_after,
)

DATA = random.Random(7).randbytes(300_000)
DIGEST = Digest(hashlib.sha256(DATA).hexdigest())
QUICK = Persistence(stall_s=0.1, failures=3)
LIMIT = 400_000


def _run(server: RudeServer, target: Path, waits: list[float] | None = None) -> list[int]:
    told: list[int] = []
    slept = waits if waits is not None else []
    Download(server.url, DIGEST, LIMIT, told.append, QUICK, slept.append).run(target)
    return told


def test_a_file_arrives_whole_and_leaves_no_part(tmp_path: Path) -> None:
    with serving(DATA) as server:
        told = _run(server, tmp_path / "a.whl")
    assert (tmp_path / "a.whl").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["a.whl"]
    assert told == sorted(told)
    assert told[-1] == len(DATA)


@pytest.mark.parametrize("percent", [1, 10, 50, 99])
def test_a_cut_is_resumed_at_the_same_offset(tmp_path: Path, percent: int) -> None:
    cut = len(DATA) * percent // 100
    with serving(DATA, cut_after(cut)) as server:
        _run(server, tmp_path / "a.whl")
        assert server.ranges == [None, f"bytes={cut}-"]
        assert server.sent == len(DATA)
    assert (tmp_path / "a.whl").read_bytes() == DATA


def test_a_stall_counts_as_a_cut(tmp_path: Path) -> None:
    with serving(DATA, stall_after(1000)) as server:
        _run(server, tmp_path / "a.whl")
        assert server.ranges == [None, "bytes=1000-"]


def test_a_killed_process_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.whl.part").write_bytes(DATA[:1234])
    with serving(DATA) as server:
        _run(server, tmp_path / "a.whl")
        assert server.ranges == ["bytes=1234-"]
    assert (tmp_path / "a.whl").read_bytes() == DATA


def test_a_server_that_ignores_ranges_starts_from_zero(tmp_path: Path) -> None:
    (tmp_path / "a.whl.part").write_bytes(DATA[:1234])
    with serving(DATA, ignore_range) as server:
        _run(server, tmp_path / "a.whl")
    assert (tmp_path / "a.whl").read_bytes() == DATA


@pytest.mark.parametrize(
    "rude",
    [
        answer(416, b"range not satisfiable", Content_Range="bytes */5"),
        answer(500, b"internal error"),
        answer(503, b"come back later"),
        answer(429, b"slow down"),
        answer(200, b"<html>please log in</html>", Content_Type="text/html; charset=utf-8"),
        answer(206, b"xxxx", Content_Range="bytes 0-3/300000"),
        answer(206, b"xxxx", Content_Range="nonsense"),
        answer(206, b"xxxx", Content_Range="bytes 1234-1299/300000"),
        answer(204, b""),
        answer(200, b"x" * 50, Content_Encoding="gzip"),
        answer(206, b"x" * 10, Content_Range="bytes 1234-1243/999999"),
    ],
)
@pytest.mark.parametrize("part", [0, 1234])
def test_nothing_but_the_file_gets_into_the_file(
    tmp_path: Path, rude: Behaviour, part: int
) -> None:
    """D01: an error page in the middle of a resume."""
    if part:
        (tmp_path / "a.whl.part").write_bytes(DATA[:part])
    waits: list[float] = []
    with serving(DATA, rude) as server:
        _run(server, tmp_path / "a.whl", waits)
    assert (tmp_path / "a.whl").read_bytes() == DATA
    assert waits == [0.5]


def test_a_part_longer_than_the_file_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "a.whl.part").write_bytes(DATA + b"more")
    with serving(DATA, answer(416, b"", Content_Range=f"bytes */{len(DATA)}")) as server:
        _run(server, tmp_path / "a.whl")
        assert server.ranges == [f"bytes={len(DATA) + 4}-", None]


def test_a_spoilt_part_is_found_out_and_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "a.whl.part").write_bytes(b"x" * 1000)
    with serving(DATA) as server:
        _run(server, tmp_path / "a.whl")
        assert server.ranges == ["bytes=1000-", None]
    assert (tmp_path / "a.whl").read_bytes() == DATA


def test_a_body_without_a_length_ends_with_the_connection(tmp_path: Path) -> None:
    with serving(DATA, no_length(b"")) as server:
        _run(server, tmp_path / "a.whl")
    assert (tmp_path / "a.whl").read_bytes() == DATA


def test_an_endless_body_is_cut_at_the_limit(tmp_path: Path) -> None:
    with serving(DATA, no_length(bytes(LIMIT))) as server:
        told = _run(server, tmp_path / "a.whl")
    assert max(told) <= LIMIT
    assert (tmp_path / "a.whl").read_bytes() == DATA


def test_the_wrong_file_twice_is_corrupt_and_leaves_nothing(tmp_path: Path) -> None:
    wrong = bytes(1000)
    with (
        serving(wrong) as server,
        pytest.raises(ShardCorrupt, match="digest that the package"),
    ):
        _run(server, tmp_path / "a.whl")
    assert len(server.ranges) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "error"), [(404, ModelNotFound), (403, ModelNotFound)])
def test_a_refusal_for_good_is_not_repeated(
    tmp_path: Path, status: int, error: type[MeshInferError]
) -> None:
    with serving(DATA, answer(status, b"no")) as server, pytest.raises(error, match=str(status)):
        _run(server, tmp_path / "a.whl")
    assert len(server.ranges) == 1


def test_patience_ends_and_waits_grow(tmp_path: Path) -> None:
    waits: list[float] = []
    with (
        serving(DATA, *[answer(500, b"")] * 3) as server,
        pytest.raises(TimedOut, match="answers 500"),
    ):
        _run(server, tmp_path / "a.whl", waits)
    assert waits == [0.5, 1.0]


def test_bytes_between_failures_renew_the_patience(tmp_path: Path) -> None:
    with serving(DATA, *[cut_after(1000)] * 5) as server:
        _run(server, tmp_path / "a.whl")
        assert server.sent == len(DATA)


def test_nobody_there_is_timed_out_with_the_host(tmp_path: Path) -> None:
    with serving(DATA) as server:
        pass
    with pytest.raises(TimedOut, match=r"127\.0\.0\.1 cannot be reached"):
        _run(server, tmp_path / "a.whl")


def test_a_file_address_is_copied_and_checked(tmp_path: Path) -> None:
    (tmp_path / "origin").write_bytes(DATA)
    url = (tmp_path / "origin").as_uri()
    Download(url, DIGEST, LIMIT, lambda _: None, QUICK).run(tmp_path / "a.whl")
    assert (tmp_path / "a.whl").read_bytes() == DATA


def test_other_addresses_are_refused() -> None:
    with pytest.raises(ModelNotFound, match="no address"):
        Download("ftp://127.0.0.1/a", DIGEST, LIMIT, lambda _: None)


def test_a_certificate_bundle_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"missing\.pem cannot be read.*PIP_CERT"):
        make_opener({"PIP_CERT": str(tmp_path / "missing.pem")})
