"""HTTP responses and event streams, whatever pieces they come in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.loads.event_scan import EventScan
from tools.loads.response import MOST_HEAD, ChunkedBody, Response


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[first:end] for first, end in zip(edges, edges[1:], strict=False)]


@given(st.lists(st.binary(min_size=1, max_size=40)), st.lists(st.integers(0, 10**6)))
def test_chunks_come_apart_wherever_the_bytes_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    body = ChunkedBody()
    pieces = cut_at(chunked(*parts), cuts)
    assert b"".join(body.feed(piece) for piece in pieces) == b"".join(parts)
    assert body.finished


def test_what_is_not_chunked_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        ChunkedBody().feed(b"data: x\r\n")


HEAD = b"HTTP/1.1 %s OK\r\nContent-Type: text/event-stream\r\n"


@given(st.lists(st.integers(0, 10**6)))
def test_a_response_of_known_length(cuts: list[int]) -> None:
    response = Response()
    data = HEAD % b"429" + b"Content-Length: 5\r\nRetry-After: 3\r\n\r\nhello and more"
    assert b"".join(response.feed(piece) for piece in cut_at(data, cuts)) == b"hello"
    assert (response.status, response.headers["retry-after"]) == (429, "3")
    assert response.finished


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    response = Response()
    assert response.feed(HEAD % b"200" + b"\r\nab") + response.feed(b"cd") == b"abcd"
    assert not response.finished


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"x" * (MOST_HEAD + 1)]
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="response"):
        Response().feed(data)


def event(document: object) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


STREAM = b"".join(
    [
        event(delta(role="assistant", content="")),
        b": waiting\n\n",
        event(delta(content='a "content":"x" b')),
        event(delta(content=None, reasoning_content="hm")),
        event(delta(content="\n\ndata: [DONE]\n\n")),
        event(delta()),
        event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}}),
        b"data: [DONE]\n\n",
    ]
)


@given(st.lists(st.integers(0, 10**6)))
def test_events_with_text_are_counted_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    scan = EventScan(keep_text=True)
    assert sum(scan.feed(piece) for piece in cut_at(STREAM, cuts)) == 3
    assert scan.text == 'a "content":"x" b\n\ndata: [DONE]\n\n'
    assert (scan.tokens_told, scan.prompt_tokens_told) == (4, 7)
    assert scan.done
    assert scan.error is None


def test_compact_json_line_ends_with_a_return_and_completions_are_read_too() -> None:
    scan = EventScan()
    compact = json.dumps(delta(content="x"), separators=(",", ":")).encode()
    assert scan.feed(b"data:" + compact + b"\r\n\r\n") == 1
    assert (
        scan.feed(b'data: {"choices":[{"text":"x"}]}\n\ndata: {"choices":[{"text":""}]}\n\n') == 1
    )
    assert scan.feed(b"data: [DONE]\r\n\r\n") == 0
    assert scan.done
    assert scan.text == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [({"message": "gone", "code": "peer_lost"}, "peer_lost"), ({"type": "x"}, "x"), ("no", "no")],
)
def test_an_error_inside_a_stream_is_kept(error: object, code: str) -> None:
    scan = EventScan()
    scan.feed(event({"error": error}))
    assert (scan.error, scan.done) == (code, False)


def test_an_answer_that_is_not_streamed() -> None:
    scan = EventScan(keep_text=True)
    choices = [{"message": {"content": "hello"}}]
    scan.whole(json.dumps({"choices": choices, "usage": {"completion_tokens": 2}}).encode())
    assert (scan.text, scan.tokens_told, scan.done) == ("hello", 2, True)
