"""The models of this PC: which one it would serve, its description, its stages, its text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from meshinfer.core.ids import ModelId
from meshinfer.core.model import ModelShape, StageManifest, UnitRange
from meshinfer.engine.grammar import GrammarCompiler
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.errors import ModelNotFound, StageFailed, from_code
from meshinfer.node.child import ChildProcess
from meshinfer.node.draft_choice import AUTO, DraftChoice
from meshinfer.node.draft_library import DraftLibrary
from meshinfer.node.state_folder import StateFolder
from meshinfer.node.stores import StoreChoice
from meshinfer.serve.encoder import ThreadedEncoder
from meshinfer.serve.inbox import Encoder, Language
from meshinfer.weights.folder import ModelFolder, find_folder, list_folders
from meshinfer.wire.child import WeightsDone, WeightsFailed, WeightsJob, WeightsNews

Tell = Callable[[str, int, int], None]


class DiskLibrary:
    """Implements node.term_tools.Library over the state folder.

    Reading and cutting happen in a weights process; the tokenizer is loaded into a thread here,
    once a model.
    """

    def __init__(
        self,
        folder: StateFolder,
        store: StoreChoice,
        wanted: ModelId | None,
        source: str = "",
        with_probes: bool = False,
        draft: str = AUTO,
    ) -> None:
        """`source` is where to get the wanted model, as a person writes it; `with_probes`: stages
        are calibrated, so they need something to be judged on; `draft` is what `up --draft`
        says."""
        self._folder = folder
        self._store = store
        self._wanted = wanted
        self._source = source
        self._with_probes = with_probes
        self._drafts = DraftLibrary(folder.models, draft, self._fetch)
        self._texts: dict[ModelId, tuple[ThreadedEncoder, GenAiTokenizer]] = {}

    def choice(self) -> ModelId | None:
        """`up --model`, else what was chosen before, else the only model on the disk."""
        if self._wanted is not None:
            return self._wanted
        chosen = self._folder.chosen_model()
        if chosen is not None:
            return chosen
        models = [one.model for one in list_folders(self._folder.models)]
        return models[0] if len(models) == 1 else None

    def has_choice(self) -> bool:
        """This PC knows which model to serve, on its disk or not yet: it should rather lead than
        one that does not."""
        return self.choice() is not None

    async def ready(self, model: ModelId, tell: Tell) -> ModelShape:
        folder = await asyncio.to_thread(self._find, model)
        if folder is None:
            await self._work(self._job("pull", model, ()), tell)
            folder = await asyncio.to_thread(find_folder, self._folder.models, model)
        return folder.shape

    @property
    def speculates(self) -> bool:
        return self._drafts.speculates

    async def draft(self, model: ModelId, tell: Tell) -> DraftChoice:
        return await self._drafts.choose(model, tell)

    async def _fetch(self, model: ModelId, tell: Tell) -> None:
        if await asyncio.to_thread(self._find, model) is None:
            await self._work(self._job("pull", model, ()), tell)

    async def split(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: Tell
    ) -> tuple[StageManifest, ...]:
        done = await self._work(self._job("split", model, ranges), tell)
        return done.manifests

    async def probes(
        self, model: ModelId, ranges: tuple[UnitRange, ...], tell: Tell
    ) -> tuple[bytes, ...]:
        if not self._with_probes:
            return (b"",) * len(ranges)
        folder = str(self._folder.root / "probes")
        job = replace(self._job("probe", model, ranges), probes_folder=folder)
        return (await self._work(job, tell)).probes

    async def text(self, model: ModelId, context_length: int) -> tuple[Encoder, Language]:
        folder = await asyncio.to_thread(find_folder, self._folder.models, model)
        if model not in self._texts:
            tokenizer = await asyncio.to_thread(GenAiTokenizer.load, folder.path)
            grammars = partial(_grammars, tokenizer, folder)
            self._texts[model] = (ThreadedEncoder(tokenizer, grammars), tokenizer)
        encoder, tokenizer = self._texts[model]
        language = Language(
            vocabulary=await asyncio.to_thread(tokenizer.vocabulary),
            stop_tokens=frozenset(folder.stop_tokens),
            special_tokens=tokenizer.special_tokens() | frozenset(folder.stop_tokens),
            context_length=context_length,
        )
        return encoder, language

    def created(self, model: ModelId) -> int:
        """When the model came to this PC, in seconds since 1970."""
        folder = self._find(model)
        return folder.created if folder else 0

    def close(self) -> None:
        for encoder, _ in self._texts.values():
            encoder.close()

    def _find(self, model: ModelId) -> ModelFolder | None:
        try:
            return find_folder(self._folder.models, model)
        except ModelNotFound:
            return None

    def _job(self, kind: str, model: ModelId, ranges: tuple[UnitRange, ...]) -> WeightsJob:
        source = self._source if model == self._wanted else ""
        models = str(self._folder.models)
        return WeightsJob(kind, model, models, self._store.tell(), ranges, source)

    async def _work(self, job: WeightsJob, tell: Tell) -> WeightsDone:
        async with ChildProcess("meshinfer.node.weights_host") as child:
            await child.send(job)
            while True:
                match await child.receive():
                    case WeightsNews(phase, done, total):
                        tell(phase, done, total)
                    case WeightsDone() as finished:
                        return finished
                    case WeightsFailed(code, cause, remedy):
                        raise from_code(code, cause, remedy)
                    case other:
                        raise StageFailed(f"the weights process sent {type(other).__name__}")


def _grammars(tokenizer: GenAiTokenizer, folder: ModelFolder) -> GrammarCompiler:
    """For the model's own tokens. Blocks for a second."""
    ends = frozenset(folder.stop_tokens)
    return GrammarCompiler(
        vocabulary=tokenizer.vocabulary(),
        size=folder.shape.vocabulary_size,
        special=tokenizer.special_tokens() | ends,
        end_tokens=ends,
        encode=tokenizer.encode_text,
    )
