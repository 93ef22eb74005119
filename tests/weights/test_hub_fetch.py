"""Models of the hub through the real client, against a hub on this machine."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from meshinfer.errors import DiskFull, ModelNotFound, ShardCorrupt, TimedOut
from meshinfer.weights.download import Persistence
from meshinfer.weights.hub import Hub
from meshinfer.weights.hub_fetch import GGUF_NAME, fetch
from meshinfer.weights.progress import Progress, untold
from meshinfer.weights.selection import Kind
from meshinfer.weights.source import HubSource
from tests.weights.hub_server import COMMIT, TOKEN, HubServer, Repository, serving

BIN = random.Random(1).randbytes(200_000)
IR = {
    "openvino_model.xml": b"<net/>",
    "openvino_model.bin": BIN,
    "config.json": b"{}",
    "README.md": b"# long text",
    "pytorch_model.bin": b"a pickle",
}
LARGE = frozenset({"openvino_model.bin"})
SOURCE = HubSource("org/m")
QUICK = Persistence(stall_s=0.2, failures=3, first_wait_s=0.0)


def _ir(**changed: object) -> Repository:
    return Repository(files=dict(IR), large=LARGE, **changed)  # type: ignore[arg-type]


def _hub(server: HubServer, tmp_path: Path, **options: object) -> Hub:
    values = {"token": "", "offline": False, "persistence": QUICK, **options}
    return Hub(server.endpoint, tmp_path / "cache", **values)  # type: ignore[arg-type]


def _fill_cache(server: HubServer, tmp_path: Path, names: list[str]) -> None:
    """As any other program does: by the library's own download."""
    from huggingface_hub import hf_hub_download

    for name in names:
        hf_hub_download(
            "org/m",
            name,
            cache_dir=tmp_path / "cache",
            endpoint=server.endpoint,
            token=False,
        )


def test_only_what_is_needed_arrives_with_progress_in_bytes(tmp_path: Path) -> None:
    told: list[Progress] = []
    with serving({"org/m": _ir()}) as server:
        got = fetch(SOURCE, tmp_path / "f", told.append, hub=_hub(server, tmp_path))
        assert not server.paths("README") + server.paths("pytorch_model")
    assert (got.checkpoint.kind, got.checkpoint.path, got.commit) == (
        Kind.IR,
        tmp_path / "f",
        COMMIT,
    )
    assert {path.name for path in (tmp_path / "f").iterdir()} == set(IR) - {
        "README.md",
        "pytorch_model.bin",
    }
    assert (tmp_path / "f" / "openvino_model.bin").read_bytes() == BIN
    size = sum(file.size for file in got.checkpoint.files)
    downloads = [one for one in told if one.phase == "download"]
    assert {one.total_bytes for one in downloads} == {size}
    assert [one.done_bytes for one in downloads] == sorted(one.done_bytes for one in downloads)
    assert downloads[-1].done_bytes == size
    assert told[0] == Progress("ask the hub", 0, 0)


def test_a_second_call_asks_for_no_bytes(tmp_path: Path) -> None:
    with serving({"org/m": _ir()}) as server:
        hub = _hub(server, tmp_path)
        fetch(SOURCE, tmp_path / "f", untold, hub=hub)
        sent = server.sent
        fetch(SOURCE, tmp_path / "f", untold, hub=hub)
        assert server.sent == sent


@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_cut_goes_on_at_the_same_byte(tmp_path: Path, percent: int) -> None:
    """D04: the sum of what is sent is the size of the files."""
    cut = len(BIN) * percent // 100
    repository = Repository({"m.gguf": BIN}, frozenset({"m.gguf"}))
    with serving({"org/m": repository}) as server:
        server.cuts.append(cut)
        got = fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
        assert server.sent == len(BIN)
        assert f"bytes={cut}-" in [one.range for one in server.heard]
    assert got.checkpoint.path == tmp_path / "f" / GGUF_NAME
    assert got.checkpoint.path.read_bytes() == BIN


def test_a_stall_is_a_cut(tmp_path: Path) -> None:
    repository = Repository({"m.gguf": BIN}, frozenset({"m.gguf"}))
    with serving({"org/m": repository}) as server:
        server.stalls.append(50_000)
        got = fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
        assert server.sent == len(BIN)
    assert got.checkpoint.path.read_bytes() == BIN


def test_a_pull_that_ended_goes_on_in_the_next_one(tmp_path: Path) -> None:
    """Every attempt is cut; the next call, even of another commit, asks for the rest alone."""
    repository = Repository({"m.gguf": BIN}, frozenset({"m.gguf"}))
    with serving({"org/m": repository}) as server:
        server.cuts.extend([70_000, 0, 0, 0, 0])
        with pytest.raises(TimedOut, match=r"ended the download|cut the download"):
            fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
        server.cuts.clear()
        repository.commit = "f" * 40
        fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
        assert server.sent == len(BIN)


def test_only_the_hub_itself_is_sent_the_token(tmp_path: Path) -> None:
    """The token is for the hub; where it points to is another host."""
    with serving({"org/m": _ir(refusal="gated")}) as server:
        fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path, token=TOKEN))
        asked = [one for one in server.heard if "/resolve/" in one.path]
        elsewhere = [one for one in server.heard if one.path.startswith("/cdn/")]
    assert {one.token for one in asked} == {f"Bearer {TOKEN}"}
    assert elsewhere
    assert {one.token for one in elsewhere} == {None}


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("gated", r"org/m is gated.*licence at .*/org/m, then .*hf auth login.*HF_TOKEN"),
        ("private", r"no repository org/m, or it is private.*hf auth login"),
        ("no revision", r"no revision 'main'"),
    ],
)
def test_refusals_are_told_with_what_to_do(tmp_path: Path, refusal: str, words: str) -> None:
    with serving({"org/m": _ir(refusal=refusal)}) as server:
        hub = _hub(server, tmp_path, token="hf_another_secret")
        with pytest.raises(ModelNotFound, match=words) as caught:
            fetch(SOURCE, tmp_path / "f", untold, hub=hub)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert not (tmp_path / "f").exists()


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with serving({"org/m": _ir()}) as server:
        hub = _hub(server, tmp_path)
        for source, words in (
            (HubSource("org/no"), "no repository org/no"),
            (HubSource("org/m", "v9"), "no revision 'v9'"),
            (HubSource("org/m", "", "x.gguf"), r"no file 'x\.gguf'"),
        ):
            with pytest.raises(ModelNotFound, match=words):
                fetch(source, tmp_path / "f", untold, hub=hub)
        fetch(HubSource("org/m", "v1"), tmp_path / "f", untold, hub=hub)


def test_nobody_answers(tmp_path: Path) -> None:
    with serving({}) as server:
        hub = _hub(server, tmp_path)
    with pytest.raises(TimedOut, match=r"cannot be reached for org/m .*proxy"):
        fetch(SOURCE, tmp_path / "f", untold, hub=hub)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a\\..\\x", "C:/x"])
def test_names_that_leave_the_folder_refuse_the_repository(tmp_path: Path, name: str) -> None:
    """S05."""
    repository = _ir()
    repository.files[name] = b"x"
    with serving({"org/m": repository}) as server:
        with pytest.raises(ShardCorrupt, match="leaves the folder"):
            fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
        assert server.sent == 0
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("name", "claim"), [("openvino_model.bin", "0" * 64), ("config.json", "1" * 40)]
)
def test_bytes_of_another_digest_are_never_used(tmp_path: Path, name: str, claim: str) -> None:
    with serving({"org/m": _ir(claims={name: claim})}) as server:
        hub = _hub(server, tmp_path)
        with pytest.raises(ShardCorrupt, match=f"{name} does not have the digest that org/m"):
            fetch(SOURCE, tmp_path / "f", untold, hub=hub)
    assert not (tmp_path / "f" / name).exists()


def test_the_digest_of_the_catalogue_counts_too(tmp_path: Path) -> None:
    with serving({"org/m": _ir()}) as server:
        with pytest.raises(ShardCorrupt, match="not the one that the catalogue names"):
            fetch(SOURCE, tmp_path / "f", untold, digest="0" * 64, hub=_hub(server, tmp_path))
        assert server.sent == 0


def test_a_model_that_does_not_fit_is_refused_before_a_byte_is_asked(tmp_path: Path) -> None:
    """D06."""
    with serving({"org/m": _ir(sizes={"openvino_model.bin": 1 << 60})}) as server:
        with pytest.raises(DiskFull, match="are needed"):
            fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
        assert server.sent == 0


def test_files_that_plain_http_does_not_give_come_by_the_library(tmp_path: Path) -> None:
    told: list[Progress] = []
    with serving({"org/m": _ir()}) as server:
        hub = _hub(server, tmp_path, most_http_bytes=100_000)
        got = fetch(SOURCE, tmp_path / "f", told.append, hub=hub)
        assert "HEAD" in {one.method for one in server.heard}
    path = tmp_path / "f" / "openvino_model.bin"
    assert path.read_bytes() == BIN
    assert not path.is_symlink()
    assert max(one.done_bytes for one in told) == sum(one.size for one in got.checkpoint.files)


def test_what_the_cache_has_is_linked_not_fetched(tmp_path: Path) -> None:
    with serving({"org/m": _ir()}) as server:
        _fill_cache(server, tmp_path, ["openvino_model.bin"])
        sent = server.sent
        fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
        assert server.sent - sent == len(IR["openvino_model.xml"]) + len(IR["config.json"])
    path = tmp_path / "f" / "openvino_model.bin"
    assert not path.is_symlink()
    shutil.rmtree(tmp_path / "cache")
    assert path.read_bytes() == BIN


def test_a_spoilt_copy_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    with serving({"org/m": _ir()}) as server:
        _fill_cache(server, tmp_path, ["openvino_model.bin"])
        (blob,) = (path for path in (tmp_path / "cache").rglob("blobs/*") if path.is_file())
        blob.write_bytes(bytes(len(BIN)))
        fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path))
    assert (tmp_path / "f" / "openvino_model.bin").read_bytes() == BIN


@pytest.mark.parametrize("revision", ["", COMMIT])
def test_offline_the_cache_is_enough(tmp_path: Path, revision: str) -> None:
    names = ["openvino_model.xml", "openvino_model.bin", "config.json"]
    with serving({"org/m": _ir()}) as server:
        _fill_cache(server, tmp_path, names)
        heard = len(server.heard)
        hub = _hub(server, tmp_path, offline=True)
        got = fetch(HubSource("org/m", revision), tmp_path / "f", untold, hub=hub)
        assert len(server.heard) == heard
    assert {path.name for path in (tmp_path / "f").iterdir()} == set(names)
    assert got.commit == COMMIT


def test_a_hub_that_is_away_leaves_the_cache(tmp_path: Path) -> None:
    with serving({"org/m": _ir()}) as server:
        _fill_cache(server, tmp_path, ["openvino_model.xml", "openvino_model.bin"])
        hub = _hub(server, tmp_path)
    assert fetch(SOURCE, tmp_path / "f", untold, hub=hub).checkpoint.kind is Kind.IR


@pytest.mark.parametrize("names", [[], ["config.json"]])
def test_offline_without_the_model_in_the_cache(tmp_path: Path, names: list[str]) -> None:
    with serving({"org/m": _ir()}) as server:
        _fill_cache(server, tmp_path, names)
        heard = len(server.heard)
        with pytest.raises(ModelNotFound, match="cache|There is no model"):
            fetch(SOURCE, tmp_path / "f", untold, hub=_hub(server, tmp_path, offline=True))
        assert len(server.heard) == heard


def test_a_kind_may_be_refused_before_it_is_fetched(tmp_path: Path) -> None:
    def refuse(kind: Kind) -> None:
        raise ModelNotFound(f"no {kind}")

    with serving({"org/m": _ir()}) as server:
        with pytest.raises(ModelNotFound, match="no OpenVINO IR"):
            fetch(SOURCE, tmp_path / "f", untold, allow=refuse, hub=_hub(server, tmp_path))
        assert server.sent == 0


def test_files_of_another_choice_do_not_stay(tmp_path: Path) -> None:
    repository = Repository({"a.gguf": BIN, "b.gguf": BIN[:100]}, frozenset({"a.gguf", "b.gguf"}))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "openvino_model.bin.part").write_bytes(b"x")
    with serving({"org/m": repository}) as server:
        source = HubSource("org/m", "", "b.gguf")
        fetch(source, tmp_path / "f", untold, hub=_hub(server, tmp_path))
    assert {path.name for path in (tmp_path / "f").iterdir()} == {GGUF_NAME}


def _pull(
    server: HubServer, tmp_path: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`fetch` with the environment's settings, in a process that reads them."""
    script = """
        import sys
        from pathlib import Path
        from meshinfer.weights.hub_fetch import fetch
        from meshinfer.weights.source import HubSource
        from meshinfer.errors import MeshInferError
        try:
            fetch(HubSource("org/m"), Path(sys.argv[1]), lambda progress: None)
        except MeshInferError as error:
            print(error)
            sys.exit(1)
    """
    unset = {"HF_TOKEN", "HF_HUB_CACHE", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"}
    kept = {key: value for key, value in os.environ.items() if key not in unset}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "f")],
        env={**kept, "HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"),
             **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_environment_counts(tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE and HF_HUB_OFFLINE, as for every other program."""
    with serving({"org/m": _ir(refusal="gated")}) as server:
        refused = _pull(server, tmp_path)
        assert refused.returncode == 1
        assert f"{server.endpoint}/org/m" in refused.stdout
        let_in = _pull(server, tmp_path, HF_TOKEN=TOKEN)
        assert let_in.returncode == 0, let_in.stderr
        assert TOKEN not in let_in.stdout + let_in.stderr
        server.repositories["org/m"].refusal = ""
        _fill_cache(server, tmp_path, ["openvino_model.xml", "openvino_model.bin"])
        shutil.rmtree(tmp_path / "f")
        heard = len(server.heard)
        cache = str(tmp_path / "cache")
        offline = _pull(server, tmp_path, HF_HUB_CACHE=cache, HF_HUB_OFFLINE="1")
        assert offline.returncode == 0, offline.stdout
        empty = _pull(server, tmp_path, HF_HUB_CACHE=str(tmp_path / "no"), HF_HUB_OFFLINE="1")
        assert empty.returncode == 1
        assert "HF_HUB_OFFLINE" in empty.stdout
        assert len(server.heard) == heard
