"""Candidates for one sequence: what the draft model and its own text say may follow. Pure."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from meshinfer.core.draft import DraftNode
from meshinfer.serve.acceptance import Acceptance, Evidence, OwnRecord, Source
from meshinfer.serve.candidates import Candidate, CandidateTree
from meshinfer.serve.draft_book import DraftMirror
from meshinfer.serve.lookup_drafts import LookupDrafts
from meshinfer.serve.sequence import Sequence

LEAST_REACH = 0.02
"""Guesses below that chance are not looked at."""

MOST_CANDIDATES = 64
_MODEL = Source.MODEL
_LOOKUP = Source.LOOKUP


@dataclass(frozen=True, slots=True)
class Sources:
    """Where guesses come from."""

    lookup: LookupDrafts
    acceptance: Acceptance


def candidates(
    sources: Sources,
    sequence: Sequence,
    own: OwnRecord,
    mirror: DraftMirror | None,
    path: float,
    depth: int,
) -> list[Candidate]:
    """Parents first, at most `depth` behind the sequence's known tokens and the guess that is under
    way, which is right with the chance `path`. Tokens that end the answer are left out: nothing
    follows them, so there is nothing to gain."""
    tree = CandidateTree()
    if depth < 1:
        return []
    if mirror is not None:
        _add_model(tree, mirror, sequence.guess, depth)
    found = sources.lookup.propose(sequence, sequence.guess, depth)
    if found is not None:
        place = -1
        for index, token in enumerate(found.tokens):
            place = tree.add(place, token, Evidence(_LOOKUP, found.matched + index))
    judged = _judged(tree, sources.acceptance, own, path, sequence.stop_tokens)
    if sequence.drafts is None:
        return [one for one in judged if one.reach >= LEAST_REACH]
    return judged  # as many as it asked for, however unlikely


def _add_model(tree: CandidateTree, mirror: DraftMirror, tail: SequenceOf[int], depth: int) -> None:
    """Level by level, so that the limit cuts the deepest."""
    level: list[tuple[int, DraftNode]] = [(-1, node) for node in mirror.after(tail).values()]
    for _ in range(depth):
        following: list[tuple[int, DraftNode]] = []
        for parent, node in level:
            place = tree.add(parent, node.token, Evidence(_MODEL, node.chance))
            following += [(place, child) for child in mirror.children(node).values()]
        level = following
        if not level or len(tree) >= MOST_CANDIDATES:
            return


def _judged(
    tree: CandidateTree,
    acceptance: Acceptance,
    own: OwnRecord,
    path: float,
    ends: Collection[int],
) -> list[Candidate]:
    judged: list[Candidate] = []
    renamed: dict[int, int] = {-1: -1}
    for place in range(len(tree)):
        parent = renamed.get(tree.parent(place))
        token = tree.token(place)
        if parent is None or token in ends:
            continue
        evidence = tuple(tree.evidence(place))
        chance = acceptance.chance(evidence, own)
        reach = chance * (path if parent < 0 else judged[parent].reach)
        renamed[place] = len(judged)
        judged.append(Candidate(parent, token, evidence, chance, reach))
    return judged
