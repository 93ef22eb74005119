"""Any source of a model becomes a model folder: found on the disk, else got, read, described.

    MODELS/MODEL_ID/            the result (`folder`)
    MODELS/.MODEL_ID.fetch/     what is being fetched
    MODELS/.MODEL_ID.work/      what is made of it: key.json says of what, model/ becomes final
    MODELS/.MODEL_ID.lock       held by the process that prepares the model

A Source and a Recipe enter, a ModelFolder leaves. Called by the weights process and by commands.
Everything here blocks. Whatever interrupts it, the next call goes on: with the bytes that were
fetched, and with the layers that were made when source and recipe are the same.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.ids import ModelId
from meshinfer.errors import DiskFull, ModelNotFound, ShardCorrupt, StageFailed, UsageError
from meshinfer.weights.description import DESCRIPTION_FILE, to_json
from meshinfer.weights.disk import disk_errors, make_folder, write_whole
from meshinfer.weights.export.installed import export_versions
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.folder import ModelFolder, check_id, describe, open_folder
from meshinfer.weights.hub import Hub
from meshinfer.weights.hub_fetch import THE_HUB
from meshinfer.weights.lock import exclusive
from meshinfer.weights.obtain import Obtained, changed_since, label, obtain, same_label
from meshinfer.weights.prebuilt import adopt
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.publish import publish, recover
from meshinfer.weights.recipe import Recipe, WeightFormat
from meshinfer.weights.selection import Kind
from meshinfer.weights.source import Source
from meshinfer.weights.template_check import check_template
from meshinfer.weights.usual_recipe import usual_recipe

AS_IT_IS = Recipe(WeightFormat.ORIGINAL)


def prepare(
    source: Source,
    models_root: Path,
    recipe: Recipe | None,
    progress: Tell,
    name: ModelId | None = None,
    hub: Hub = THE_HUB,
) -> ModelFolder:
    """The model, ready to be split. Without `recipe` whatever form is on the disk will do, and a
    new one gets the usual one (`usual_recipe`); `name` is the model's id instead of the source's.

    Raises ModelNotFound, TimedOut, ShardCorrupt, DiskFull, StageFailed (it cannot be read, cut or
    trusted), UsageError (a recipe that fits no such source, or another source has that name). A
    model that was there stays as it was.
    """
    model = name or source.model_id
    check_id(model)
    make_folder(models_root)
    with exclusive(models_root / f".{model}.lock", _waiting(progress)):
        return _Preparation(source, model, models_root, recipe, progress).run(hub)


@dataclass(frozen=True, slots=True)
class _Preparation:
    source: Source
    model: ModelId
    root: Path
    recipe: Recipe | None
    progress: Tell

    def run(self, hub: Hub) -> ModelFolder:
        self._sweep()
        ready = self._ready()
        if ready is not None:
            return ready
        fetched = self.root / f".{self.model}.fetch"
        try:
            got = obtain(self.source, fetched, self.progress, self._is_export, self._allow, hub)
            folder = self._make(got)
        except (StageFailed, ShardCorrupt):
            shutil.rmtree(fetched, ignore_errors=True)  # of no use, however often it is read
            raise
        shutil.rmtree(fetched, ignore_errors=True)
        return folder

    @property
    def _final(self) -> Path:
        return self.root / self.model

    @property
    def _work(self) -> Path:
        return self.root / f".{self.model}.work"

    @property
    def _is_export(self) -> bool:
        """Whether weights in another form than that of an IR are wanted."""
        return self.recipe is not None and self.recipe.format is not WeightFormat.ORIGINAL

    def _sweep(self) -> None:
        recover(self._final)
        for path in self.root.glob(f".{self.model}.new-*"):  # of version 0.1
            shutil.rmtree(path, ignore_errors=True)

    def _ready(self) -> ModelFolder | None:
        """What is on the disk, when it is what is wanted."""
        try:
            found = open_folder(self._final)
        except (ModelNotFound, ShardCorrupt):
            return None
        if found.model != self.model:
            raise ModelNotFound(
                f"{found.path} holds {found.model}, not {self.model}.",
                "Give that folder another name.",
            )
        known = found.description
        if not same_label(known.source, label(self.source)):
            raise UsageError(
                f"{self.model} on this PC came from another source ({known.source}).",
                "Give this one another name with --name.",
            )
        is_wanted = self.recipe is None or str(self.recipe) == known.recipe
        is_stale = not known.recipe or changed_since(self.source, known.created)
        return found if is_wanted and not is_stale else None

    def _allow(self, kind: Kind) -> None:
        """Raises UsageError, before anything is fetched, for what could not be made of it."""
        if kind is Kind.SAFETENSORS:
            export_versions()
        if kind is Kind.IR and self._is_export:
            raise UsageError(
                "An OpenVINO IR is kept as it is: its weights were rounded when it was made, and "
                "rounding them again would lose more.",
                "Leave --format off, or pull the checkpoint that it was made from.",
            )

    def _make(self, got: Obtained) -> ModelFolder:
        recipe = self.recipe or usual_recipe(got.checkpoint)
        work = self._open_work(got, recipe)
        try:
            facts = _convert(got, work, recipe, self.progress)
            for path in work.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
            self.progress(Progress("try the template", 0, 0))
            check_template(work, facts.chat_template)
            self.progress(Progress("describe", 0, 0))
            description = describe(
                self.model, work, facts, label(self.source), str(recipe), got.revision
            )
            write_whole(work / DESCRIPTION_FILE, to_json(description).encode())
            publish(work, self._final)
        except (StageFailed, ShardCorrupt, UsageError, DiskFull):
            shutil.rmtree(self._work, ignore_errors=True)
            raise
        shutil.rmtree(self._work, ignore_errors=True)
        return ModelFolder(self._final, description)

    def _open_work(self, got: Obtained, recipe: Recipe) -> Path:
        """The folder to work in: as it was left when it is of the same files and recipe, else
        empty."""
        key = json.dumps(
            {"source": label(self.source), "recipe": str(recipe), "files": got.key}, indent=1
        )
        note, model = self._work / "key.json", self._work / "model"
        with disk_errors(self.root):
            if not note.is_file() or note.read_text(encoding="utf-8") != key:
                shutil.rmtree(self._work, ignore_errors=True)
                self._work.mkdir()
                write_whole(note, key.encode("utf-8"))
            model.mkdir(exist_ok=True)
        return model


def _convert(got: Obtained, work: Path, recipe: Recipe, progress: Tell) -> ModelFacts:
    """The model's IR and tokenizer in `work`. The readers are imported when they are needed."""
    path = got.checkpoint.path
    with disk_errors(work):
        match got.checkpoint.kind:
            case Kind.IR:
                return adopt(path, work, progress)
            case Kind.GGUF:
                from meshinfer.weights.gguf import convert

                return convert(path, work, recipe, progress)
            case Kind.SAFETENSORS:
                from meshinfer.weights.export.run import export_checkpoint

                return export_checkpoint(path, work, recipe, progress)


def _waiting(progress: Tell) -> Callable[[float], None]:
    """How to wait for the lock: another process prepares the same model, and is told of."""

    def sleep(seconds: float) -> None:
        progress(Progress("wait for another pull", 0, 0))
        time.sleep(seconds)

    return sleep
