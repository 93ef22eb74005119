"""The steps of a draft model: which guesses to look behind next, of all sequences at once. Pure.

Every step computes a few rows, which cost hardly more than one: the likeliest places of all guess
trees, or chunks of texts that are not cached yet. Nothing is computed that is of no use; the cache
never makes a step fail: what is needed least leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from meshinfer.core.draft import DraftNode, Horizon
from meshinfer.core.request import Sampling
from meshinfer.core.step import Row, Step
from meshinfer.serve.cache_book import CacheBook
from meshinfer.serve.guess_branches import Branches, Piece
from meshinfer.serve.guess_tree import GuessTree, Place
from meshinfer.serve.prefix_cache import PrefixCache

ROWS = 6
"""Guesses that one step looks behind. A 0.5B takes 31 ms for one row, 35 for six, 42 for eight and
70 for sixteen on one core."""

CHUNK = 64
"""Tokens of texts in one step: what others guess does not wait longer than twice."""

MOST_BRANCHES = 24
"""Of one sequence; each may have a block of its own, which is copied when it forks."""

_SHORT = 4
"""Tokens of a row, beside another one of the same sequence; more would be computed twice."""

_KEPT = 16
"""Sequences that ended and are kept for texts which begin alike."""


@dataclass(slots=True)
class _Watched:
    """A sequence of the leader."""

    tree: GuessTree
    sampling: Sampling
    branches: Branches = field(default_factory=Branches)
    is_starved: bool = False  # no room for it until something ends


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a row of a step is for. `is_whole`: its logits say what follows the place."""

    sequence: int
    place: Place
    is_whole: bool
    sampling: Sampling
    position: int  # of the guesses


@dataclass(frozen=True, slots=True)
class GuessStep:
    step: Step
    expansions: tuple[Expansion, ...]  # of each row

    @property
    def whole(self) -> tuple[Expansion, ...]:
        """Of each row of logits."""
        return tuple(one for one in self.expansions if one.is_whole)


class GuessSteps:
    """`cache_tokens` and `block_size` are those of the draft stage; a text beyond `context_length`
    is not guessed at."""

    def __init__(
        self,
        cache_tokens: int,
        block_size: int,
        context_length: int,
        ends: Collection[int] = (),
    ) -> None:
        self._book = CacheBook(cache_tokens // block_size, block_size)
        self._context_length = context_length
        self._ends = ends
        self._watched: dict[int, _Watched] = {}
        self._prefixes = PrefixCache(_KEPT)
        self._released: list[int] = []
        self._last_key = 0
        self._number = 0

    def know(
        self,
        sequence: int,
        position: int,
        tokens: SequenceOf[int],
        horizon: Horizon,
        sampling: Sampling,
    ) -> bool:
        """The leader says what is known; False: it begins behind what was said before."""
        watched = self._watched.get(sequence)
        if watched is None:
            if position:
                return False
            watched = _Watched(GuessTree(tokens, horizon, self._ends), sampling)
            self._watched[sequence] = watched
            return True
        if position > len(watched.tree.known):
            return False
        watched.tree.horizon = horizon
        watched.is_starved = False
        watched.tree.know(position, tokens)
        self._release(watched.branches.know(watched.tree.known))
        return True

    def end(self, sequence: int) -> None:
        """It is over; what is cached of it is kept as a beginning of others. Idempotent."""
        watched = self._watched.pop(sequence, None)
        if watched is None:
            return
        self._release(watched.branches.know(watched.tree.known))
        for place, branch in enumerate(watched.branches.all):
            if place or not branch.tokens:
                self._release([branch.key])
            else:
                kept = branch.tokens[: len(watched.tree.known)]
                self._release(self._prefixes.keep(branch.key, kept))
        for other in self._watched.values():
            other.is_starved = False

    def forget(self, keys: Collection[int]) -> None:
        """The stage does not hold these any more, or nobody knows what it holds of them."""
        for watched in self._watched.values():
            held = list(watched.branches.all)
            watched.branches = Branches()
            for branch in held:
                if branch.key not in keys:
                    watched.branches.adopt(branch)
        for key in keys:
            self._prefixes.forget(key)
        self._release(keys)

    def next(self) -> GuessStep | None:
        """None: nothing is of use."""
        step = _Filling()
        for sequence, place in self._places():
            if step.room < 1 or len(step.rows) >= ROWS:
                break
            watched = self._watched[sequence]
            piece = self._piece(watched, place, step)
            if piece is not None:
                end = len(watched.tree.known) + len(place.tail)
                is_whole = piece.position + len(piece.tokens) == end
                step.add(piece, Expansion(sequence, place, is_whole, watched.sampling, end))
        if not step.rows:
            return None
        released, self._released = tuple(self._released), []
        self._number += 1
        rows, tokens = tuple(step.rows), tuple(step.tokens)
        return GuessStep(Step(self._number - 1, rows, tokens, released), tuple(step.expansions))

    def expand(
        self, expansion: Expansion, guesses: SequenceOf[tuple[int, float]]
    ) -> list[DraftNode]:
        """(token, chance) of what may follow; the new guesses."""
        watched = self._watched.get(expansion.sequence)
        return [] if watched is None else watched.tree.expand(expansion.place, guesses)

    def _places(self) -> list[tuple[int, Place]]:
        """The next guess of sequences that have none, who waits longest first; then the likeliest
        places of all."""
        found = []
        for sequence, watched in self._watched.items():
            if not watched.tree.horizon.depth or watched.is_starved:
                continue
            served = max((one.used for one in watched.branches.all), default=-1)
            room = self._context_length - len(watched.tree.known)
            for place in watched.tree.best():
                is_next = watched.tree.is_bare and place.node is None
                if len(place.tail) < room:
                    found.append(
                        (not is_next, served if is_next else -place.reach, sequence, place)
                    )
        found.sort(key=lambda one: one[:2])
        return [(sequence, place) for _, _, sequence, place in found]

    def _piece(self, watched: _Watched, place: Place, step: _Filling) -> Piece | None:
        """The row for a place, noted as on its way; None: there is no room for it."""
        text = [*watched.tree.known, *place.tail]
        while len(watched.branches) >= MOST_BRANCHES and self._drop([watched], step):
            pass
        if len(watched.branches):
            piece = watched.branches.piece(text, step.busy, self._last_key + 1, step.room)
        else:
            piece = self._begin(text, step)
        has_row = any(one.key in step.busy for one in watched.branches.all)
        if has_row and len(piece.tokens) > _SHORT:
            return None  # that row computes what this one needs
        if not self._make_room(watched, piece, step):
            return None
        self._last_key = max(self._last_key, piece.key)
        source = self._tokens_of(piece.fork_from)
        self._book.note(piece.key, piece.position, len(piece.tokens), piece.fork_from)
        watched.branches.note(piece, source, self._number)
        return piece

    def _begin(self, text: list[int], step: _Filling) -> Piece:
        """The first row of a text; it shares what another one holds that begins alike."""
        key, length = self._prefixes.longest(text)
        for watched in self._watched.values():
            for branch in watched.branches.all:
                common = branch.common(text, step.busy)
                if common > length:
                    key, length = branch.key, common
        length = min(length, len(text) - 1)
        if length:
            self._prefixes.touch(key)
        tokens = tuple(text[length : length + step.room])
        return Piece(self._last_key + 1, length, tokens, key if length else None)

    def _tokens_of(self, key: int | None) -> SequenceOf[int]:
        for watched in self._watched.values():
            for branch in watched.branches.all:
                if branch.key == key:
                    return branch.tokens
        return next((tokens for other, tokens in self._prefixes.items() if other == key), ())

    def _make_room(self, watched: _Watched, piece: Piece, step: _Filling) -> bool:
        """Have blocks for a row: kept beginnings leave first, then branches, the oldest first. A
        sequence for which that is not enough is left alone until another one ends."""
        spare = {*step.busy, *step.sources, piece.fork_from}
        needed = self._book.needed(piece.key, piece.position, len(piece.tokens), piece.fork_from)
        while self._book.free < needed:
            key = self._prefixes.evict(spare)
            if key is not None:
                self._release([key])
            elif not self._drop(list(self._watched.values()), step, piece):
                watched.is_starved = not step.rows
                return False
        return True

    def _drop(
        self, owners: SequenceOf[_Watched], step: _Filling, piece: Piece | None = None
    ) -> bool:
        """Whether a branch of one of these left."""
        spare: set[int | None] = {*step.busy, *step.sources}
        if piece is not None:
            spare |= {piece.key, piece.fork_from}
        for owner in sorted(owners, key=lambda one: -len(one.branches)):
            key = owner.branches.oldest(spare)
            if key is not None:
                self._release([key])
                return True
        return False

    def _release(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._book.release(key)
            self._released.append(key)


@dataclass(slots=True)
class _Filling:
    """A step in the making."""

    rows: list[Row] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    expansions: list[Expansion] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)  # sequences that are written
    sources: set[int] = field(default_factory=set)  # what is forked from

    @property
    def room(self) -> int:
        """Tokens that it may still take."""
        return CHUNK - len(self.tokens)

    def add(self, piece: Piece, expansion: Expansion) -> None:
        logits = int(expansion.is_whole)
        count = len(piece.tokens)
        self.rows.append(Row(piece.key, piece.position, count, logits, fork_from=piece.fork_from))
        self.tokens += piece.tokens
        self.expansions.append(expansion)
        self.busy.add(piece.key)
        if piece.fork_from is not None:
            self.sources.add(piece.fork_from)
