"""Which cached sequences of the draft model hold which of its guesses. Pure.

A paged cache shares what texts have in common: every path of a guess tree is a sequence of its own
that forks from another one where they part, so a tree is computed by any engine, without attention
for trees. One branch, the trunk, has the known tokens; others hang on them.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.serve.prefix_cache import common_length


@dataclass(slots=True)
class Branch:
    """A sequence of the draft stage with the tokens that its cache holds."""

    key: int
    tokens: list[int]
    used: int = 0  # number of the step that wrote it last
    settled: int = 0  # tokens that it held before that step

    def common(self, text: SequenceOf[int], busy: Collection[int]) -> int:
        """Tokens of `text` that a row may build on; of one in `busy`, which the same step writes,
        only what was there before."""
        length = common_length(self.tokens, text)
        return min(length, self.settled) if self.key in busy else length


@dataclass(frozen=True, slots=True)
class Piece:
    """A row to compute: `count` tokens of a text from `position` on, in the sequence `key`."""

    key: int
    position: int
    tokens: tuple[int, ...]
    fork_from: int | None


class Branches:
    """Of one sequence."""

    def __init__(self) -> None:
        self._branches: list[Branch] = []

    def __len__(self) -> int:
        return len(self._branches)

    @property
    def all(self) -> SequenceOf[Branch]:
        return self._branches

    def know(self, known: SequenceOf[int]) -> list[int]:
        """Keep those that hold all known tokens, or else the one that holds most of them, as far as
        it does. Returns the keys of the others, whose cache may go."""
        common = {one.key: common_length(one.tokens, known) for one in self._branches}
        longest = max(common.values(), default=0)
        kept = [one for one in self._branches if common[one.key] == len(known)]
        if not kept:
            kept = [one for one in self._branches if common[one.key] == longest][:1]
            for one in kept:
                del one.tokens[longest:]
        gone = [one.key for one in self._branches if one not in kept]
        self._branches = kept
        return gone

    def adopt(self, branch: Branch) -> None:
        """A cached sequence belongs here from now on."""
        self._branches.append(branch)

    def piece(self, text: list[int], busy: set[int], new_key: int, most: int) -> Piece:
        """The next row for having `text` cached: up to `most` of its tokens. The last one is
        computed in any case, for its logits. Branches in `busy` have a row in this step already."""
        best, length = None, 0
        for one in self._branches:
            common = min(one.common(text, busy), len(text) - 1)
            if common > length:
                best, length = one, common
        tokens = tuple(text[length : length + most])
        if best is None:
            return Piece(new_key, 0, tokens, None)
        if best.key in busy or len(best.tokens) > length:
            return Piece(new_key, length, tokens, best.key)
        return Piece(best.key, length, tokens, None)

    def note(self, piece: Piece, source: SequenceOf[int], step: int) -> None:
        """It is on its way; `source` are the tokens of what it forks from."""
        branch = next((one for one in self._branches if one.key == piece.key), None)
        if branch is None:
            branch = Branch(piece.key, list(source[: piece.position]))
            self._branches.append(branch)
        branch.settled = piece.position
        branch.tokens += piece.tokens
        branch.used = step

    def oldest(self, spare: Collection[int | None]) -> int | None:
        """The branch that was of use longest ago, of those not in `spare`, leaves; one always
        stays."""
        unused = [one for one in self._branches if one.key not in spare]
        if not unused or len(self._branches) == 1:
            return None
        gone = min(unused, key=lambda one: one.used)
        self._branches.remove(gone)
        return gone.key
