"""A whole model made range by range: each range of layers is a part on the disk, and the parts are
joined to one IR at the end. Memory follows one part.

    FOLDER/parts/assembly.json      what is made: another source or recipe starts over
    FOLDER/parts/0-7.xml, .bin      a finished part; the XML comes last
    FOLDER/openvino_model.xml, .bin the whole

Called by the export and the GGUF reader, in the weights process. Everything here blocks.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.core.model import UnitRange
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.cut import openvino_errors, read_model
from meshinfer.weights.disk import disk_errors, sync_file, write_whole
from meshinfer.weights.renumbering import renumber
from meshinfer.weights.stitch import stitch

MODEL_XML = "openvino_model.xml"
_KEY_FILE = "assembly.json"


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """Decoder layers, half-open. The first span has the embedding as well, the last the head."""

    first: int
    end: int

    def units(self, layers: int) -> UnitRange:
        """Of a model with two units a layer, an embedding and a head."""
        first = 1 + 2 * self.first if self.first else 0
        end = 1 + 2 * self.end
        return UnitRange(first, end + 1 if self.end == layers else end)

    def __str__(self) -> str:
        return f"{self.first}-{self.end}"


def even_spans(layers: int, longest: int) -> tuple[LayerSpan, ...]:
    """As few spans of at most `longest` layers as possible, of nearly equal length."""
    count = -(-layers // longest)
    ends = [layers * number // count for number in range(count + 1)]
    return tuple(LayerSpan(first, end) for first, end in zip(ends, ends[1:], strict=False))


class Assembly:
    """The parts of one model in `folder`. `key` names source and recipe: parts that were made with
    another one are removed. Raises DiskFull everywhere."""

    def __init__(self, folder: Path, key: str, spans: Sequence[LayerSpan]) -> None:
        self._folder = folder
        self._parts = folder / "parts"
        self._spans = tuple(spans)
        self._open(json.dumps({"key": key, "spans": [str(span) for span in spans]}))

    @property
    def beside(self) -> Path:
        """The parts' folder: what else is kept there lives as long as they do."""
        return self._parts

    @property
    def missing(self) -> tuple[LayerSpan, ...]:
        """Spans that are not made yet, in order."""
        return tuple(span for span in self._spans if not self._xml(span).is_file())

    def add(self, span: LayerSpan, model: Any) -> None:
        """Keep an ov.Model as the part `span`.

        Its inputs are `input_ids` (the first part) or `inputs_embeds`, and of `attention_mask`,
        `position_ids` and `beam_idx` those it reads; its one output is f32 [batch, length, hidden],
        or the logits (the last part), as `weights.cut` makes them. Its layers may be numbered from
        0 or from span.first.
        """
        import openvino as ov

        xml = self._xml(span)
        scratch = xml.with_name(f"{span}.new.xml")
        with disk_errors(self._parts), openvino_errors(f"Saving the layers {span}"):
            ov.save_model(model, scratch, compress_to_fp16=False)
            sync_file(scratch.with_suffix(".bin"))
        text = renumber(scratch.read_text(encoding="utf-8"), span.first)
        scratch.with_suffix(".bin").replace(xml.with_suffix(".bin"))
        scratch.unlink()
        write_whole(xml, text.encode("utf-8"))

    def finish(self) -> None:
        """Join the parts to the whole model in `folder`, and remove them. Raises StageFailed when
        they do not fit together, ShardCorrupt when one is missing."""
        import openvino as ov

        if self.missing:
            raise ShardCorrupt(f"The layers {self.missing[0]} are not made yet.")
        parts = [read_model(self._xml(span)) for span in self._spans]
        whole = stitch(parts)
        with disk_errors(self._folder), openvino_errors("Joining the parts of the model"):
            ov.save_model(whole, self._folder / MODEL_XML, compress_to_fp16=False)
        del whole, parts
        gc.collect()  # unmap the parts before they are removed: Windows insists
        shutil.rmtree(self._parts, ignore_errors=True)

    def _open(self, key: str) -> None:
        with disk_errors(self._folder):
            self._parts.mkdir(parents=True, exist_ok=True)
            file = self._parts / _KEY_FILE
            if file.is_file() and file.read_text(encoding="utf-8") == key:
                return
            shutil.rmtree(self._parts)
            self._parts.mkdir()
            write_whole(file, key.encode("utf-8"))

    def _xml(self, span: LayerSpan) -> Path:
        return self._parts / f"{span}.xml"
