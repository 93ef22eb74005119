"""An OpenVINO IR that somebody else made becomes a model folder, as it is.

A folder with the IR of model and tokenizer enters; hard links or copies of what is needed and
ModelFacts leave. Called by `prepare`. A model folder of meshinfer itself is taken with what it
knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.checkpoint import read_json
from meshinfer.weights.description import DESCRIPTION_FILE
from meshinfer.weights.disk import disk_errors, require_room
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.folder import open_folder, verify_folder
from meshinfer.weights.folder_facts import read_folder_facts
from meshinfer.weights.hub_fetch import link_or_copy
from meshinfer.weights.ir_file import IrOutline, read_outline
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.selection import MODEL_IR, SETTINGS, TOKENIZER_IR

_FORMS = {"u4": "int4", "i4": "int4", "nf4": "nf4", "u8": "int8", "i8": "int8", "f16": "f16",
          "bf16": "bf16", "f32": "f32"}  # fmt: skip
_MODES = {"int4_sym": "int4", "int4_asym": "int4-asym", "int8_sym": "int8", "int8_asym": "int8",
          "int8": "int8"}  # fmt: skip


def adopt(folder: Path, work: Path, progress: Tell) -> ModelFacts:
    """Fill `work` with the files of `folder`. Raises StageFailed (a kind that is not served, no
    tokenizer), ShardCorrupt (damaged), DiskFull."""
    _refuse_incomplete(folder)
    outline = read_outline(folder / MODEL_IR[0])
    tokenizer = read_outline(folder / TOKENIZER_IR[0])
    read_outline(folder / TOKENIZER_IR[2])
    if (folder / DESCRIPTION_FILE).is_file():
        facts = _own_facts(folder)
    else:
        weights = weights_text(outline, folder)
        facts = read_folder_facts(folder, _plain(tokenizer.information), weights)
    _bring(folder, work, progress)
    return facts


def weights_text(outline: IrOutline, folder: Path) -> str:
    """How the weights are kept, for people: as the compression noted it in the IR, else in
    openvino_config.json, else by what most bytes are."""
    noted = {
        path[-1]: value
        for path, value in outline.information.items()
        if path[:2] == ("nncf", "weight_compression")
    }
    if noted.get("mode"):
        return _compressed(noted["mode"], noted.get("group_size", ""), noted.get("ratio", ""))
    config = folder / "openvino_config.json"
    if config.is_file():
        match read_json(config).get("quantization_config"):
            case {"bits": 4 | 8 as bits, **more}:
                mode = f"int{bits}_sym" if more.get("sym") else f"int{bits}_asym"
                return _compressed(mode, str(more.get("group_size", "")), str(more.get("ratio")))
    most = max(outline.weights, key=lambda form: outline.weights[form], default="")
    return _FORMS.get(most.lower(), "original")


def _compressed(mode: str, group: str, ratio: str) -> str:
    form = _MODES.get(mode.lower(), mode.lower()[:20])
    if form == "int8":
        return form
    size = f" group {group}" if group.isdecimal() and int(group) else ""
    size = " per channel" if group == "-1" else size
    try:
        share = float(ratio)
    except ValueError:
        share = 1.0
    return f"{form}{size}" + (f" in {share:.0%} of layers" if 0 < share < 1 else "")


def _refuse_incomplete(folder: Path) -> None:
    if not (folder / MODEL_IR[0]).is_file():
        if (folder / "openvino_language_model.xml").is_file():
            raise StageFailed(
                "This is a model for pictures and text (openvino_language_model.xml), which "
                "meshinfer does not serve.",
                "Choose a text model: one with openvino_model.xml.",
            )
        raise ShardCorrupt(f"{MODEL_IR[0]} is missing.", "Fetch the model again.")
    missing = [name for name in TOKENIZER_IR if not (folder / name).is_file()]
    if missing:
        raise StageFailed(
            f"The folder holds no OpenVINO tokenizer ({missing[0]} is missing).",
            "Choose a model that comes with one, or pull the checkpoint that it was made from.",
        )


def _own_facts(folder: Path) -> ModelFacts:
    own = open_folder(folder)
    verify_folder(own)
    known = own.description
    return ModelFacts(
        architecture=known.architecture,
        context_length=known.shape.context_length,
        stop_tokens=known.stop_tokens,
        bos=known.bos,
        chat_template=known.chat_template,
        weights=known.weights,
        accuracy=known.accuracy,
    )


def _plain(information: Mapping[tuple[str, ...], str]) -> dict[str, str]:
    return {path[0]: value for path, value in information.items() if len(path) == 1}


def _bring(folder: Path, work: Path, progress: Tell) -> None:
    """Links where the disk allows them, so that nothing takes room twice."""
    names = [name for name in (*MODEL_IR, *TOKENIZER_IR, *SETTINGS) if (folder / name).is_file()]
    sizes = {name: (folder / name).stat().st_size for name in names}
    total, done = sum(sizes.values()), 0
    if (folder / MODEL_IR[1]).stat().st_dev != work.stat().st_dev:
        require_room(work, total)
    for name in names:
        progress(Progress("copy", done, total))
        target = work / name
        target.unlink(missing_ok=True)
        with disk_errors(work):
            link_or_copy(folder / name, target)
        done += sizes[name]
    progress(Progress("copy", total, total))
