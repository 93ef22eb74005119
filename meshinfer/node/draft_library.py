"""The drafts of this PC's models: chosen once a model, their vocabularies compared once each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from meshinfer.core.ids import Digest, ModelId
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.engine.vocabulary_digest import vocabulary_digest
from meshinfer.errors import MeshInferError
from meshinfer.node.draft_choice import (
    AUTO,
    NO_DRAFT,
    OFF,
    DraftChoice,
    named_draft,
    no_draft,
    smallest_draft,
)
from meshinfer.node.term_tools import Tell
from meshinfer.weights.folder import ModelFolder, find_folder, list_folders

Fetch = Callable[[ModelId, Tell], Awaitable[object]]
"""Have a model on the disk; raises MeshInferError when it cannot be had."""


class DraftLibrary:
    """`wanted` is what `up --draft` says; `fetch` brings a model that was named."""

    def __init__(self, models: Path, wanted: str, fetch: Fetch) -> None:
        self._models = models
        self._wanted = wanted
        self._fetch = fetch
        self._tried = False
        self._digests: dict[tuple[str, int], Digest] = {}

    @property
    def speculates(self) -> bool:
        """Whether anything may be guessed at all."""
        return self._wanted != OFF

    async def choose(self, model: ModelId, tell: Tell) -> DraftChoice:
        """Never raises for a draft that cannot be: answers do not depend on it."""
        if self._wanted in (NO_DRAFT, OFF):
            return DraftChoice(None)
        try:
            if self._wanted != AUTO:
                await self._have(ModelId(self._wanted), tell)
            return await asyncio.to_thread(self._choose, model)
        except MeshInferError as error:
            return no_draft(model, self._wanted, str(error))

    async def _have(self, draft: ModelId, tell: Tell) -> None:
        """Fetched once a run: when a PC is lost, the next plan must not wait for a download that
        failed before. One that a person pulls meanwhile is found."""
        if not self._tried:
            self._tried = True
            await self._fetch(draft, lambda phase, *rest: tell(f"{draft}: {phase}", *rest))

    def _choose(self, model: ModelId) -> DraftChoice:
        target = find_folder(self._models, model)
        if self._wanted == AUTO:
            return smallest_draft(target, list_folders(self._models), self._digest)
        draft = find_folder(self._models, ModelId(self._wanted))
        return named_draft(target, draft, self._digest)

    def _digest(self, folder: ModelFolder) -> Digest:
        key = (str(folder.path), folder.created)
        if key not in self._digests:
            tokenizer = GenAiTokenizer.load(folder.path)
            self._digests[key] = vocabulary_digest(tokenizer, folder.stop_tokens)
        return self._digests[key]
