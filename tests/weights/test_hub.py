"""What the hub says, and what is made of answers that are none of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshinfer.errors import MeshInferError, ModelNotFound, ShardCorrupt, TimedOut
from meshinfer.weights.hub import Hub
from meshinfer.weights.selection import SourceFile
from tests.weights import rude_server
from tests.weights.hub_server import COMMIT, Repository, blob_id, serving

LFS = {"size": 5, "sha256": "a" * 64, "pointerSize": 130}
GOOD = {"rfilename": "x", "size": 5, "blobId": "b" * 40, "lfs": LFS}


def _hub(endpoint: str, tmp_path: Path) -> Hub:
    return Hub(endpoint, tmp_path / "cache", offline=False, token="")


def test_sizes_and_digests_of_a_listing(tmp_path: Path) -> None:
    repository = Repository({"a.bin": b"12345", "b.json": b"{}"}, frozenset({"a.bin"}))
    with serving({"o/m": repository}) as server:
        found = _hub(server.endpoint, tmp_path).listing("o/m")
    assert (found.repository, found.commit, found.from_cache) == ("o/m", COMMIT, False)
    small = {file.name: file for file in found.files}
    assert small["b.json"] == SourceFile("b.json", 2, "", blob_id(b"{}"))
    assert (small["a.bin"].size, len(small["a.bin"].sha256)) == (5, 64)
    assert small["a.bin"].git_blob == ""


def test_the_token_is_only_in_the_headers_and_not_in_the_words(tmp_path: Path) -> None:
    hub = Hub("http://127.0.0.1:1", tmp_path, offline=False, token="hf_secret")
    assert hub.secret_headers() == {"Authorization": "Bearer hf_secret"}
    assert Hub(token="").secret_headers() == {}


def _answered(status: int, content: Any, **headers: str) -> rude_server.Behaviour:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    kinds = {"Content_Type": "application/json", **headers}
    return rude_server.answer(status, body, **kinds)


def _info(*siblings: Any, **more: Any) -> dict[str, Any]:
    return {"id": "o/m", "sha": COMMIT, "siblings": list(siblings), **more}


@pytest.mark.parametrize(
    ("status", "content", "headers", "error", "words"),
    [
        (200, b"<html>Log in to the guest network</html>", {}, TimedOut, "login page"),
        (200, b"[]", {}, TimedOut, "cannot be read"),
        (200, _info({"rfilename": "x"}), {}, TimedOut, "cannot be read"),
        (200, _info({**GOOD, "size": -1, "lfs": None}), {}, TimedOut, "cannot be read"),
        (200, _info({**GOOD, "lfs": {**LFS, "sha256": "../x"}}), {}, TimedOut, "cannot be read"),
        (200, _info({"name": "x"}), {}, TimedOut, "cannot be read"),
        (200, _info(GOOD, sha="main"), {}, TimedOut, "no commit"),
        (200, _info({**GOOD, "rfilename": "../x"}), {}, ShardCorrupt, "leaves the folder"),
        (500, {}, {}, TimedOut, "answers 500.*later"),
        (503, {}, {}, TimedOut, "answers 503"),
        (429, {}, {}, TimedOut, "answers 429"),
        (403, {}, {}, ModelNotFound, "does not let this PC's token read"),
        (418, {}, {}, ModelNotFound, "answers 418"),
        (401, {}, {"X_Error_Message": "Invalid credentials in Authorization header"},
         ModelNotFound, "does not accept the token"),
        (401, {}, {}, ModelNotFound, "or it is private"),
        (403, {}, {"X_Error_Message": "Access to this resource is disabled."},
         ModelNotFound, "disabled o/m"),
        (403, {}, {"X_Error_Code": "GatedRepo"}, ModelNotFound, "accepted its licence"),
    ],
)  # fmt: skip
def test_answers_that_are_no_listing_are_told(
    tmp_path: Path,
    status: int,
    content: Any,
    headers: dict[str, str],
    error: type[MeshInferError],
    words: str,
) -> None:
    with rude_server.serving(b"", *[_answered(status, content, **headers)] * 8) as server:
        endpoint = server.url.rsplit("/", 1)[0]
        with pytest.raises(error, match=words) as caught:
            _hub(endpoint, tmp_path).listing("o/m")
    assert caught.value.remedy
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_cache_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    hub = Hub("http://127.0.0.1:1", tmp_path / "cache", offline=True, token="")
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        hub.listing("o/m")
