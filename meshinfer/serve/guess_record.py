"""What is known of one sequence's guesses, and what the model's answers teach. Pure."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from meshinfer.core.draft import Horizon
from meshinfer.serve.acceptance import Acceptance, Evidence, OwnRecord, Source
from meshinfer.serve.candidates import Candidate
from meshinfer.serve.draft_book import DraftMirror
from meshinfer.serve.pick import Pick
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.verification import Verdict


@dataclass(slots=True)
class GuessRecord:
    """Of one sequence."""

    own: OwnRecord = field(default_factory=OwnRecord)
    under_way: list[Candidate] = field(default_factory=list)  # those of `Sequence.guess`
    held_at: int = -1  # tokens that it had when it was last held back
    held_until: float = 0.0
    horizon: Horizon = Horizon(0, 0.0)  # what the draft model was told last


def learn_row(
    acceptance: Acceptance,
    record: GuessRecord,
    pick: Pick,
    found: Verdict,
    tokens: SequenceOf[int],
) -> None:
    """From the guesses of a row that came back with `tokens`. Those of the draft model teach in
    `learn_draft`."""
    if pick.row.parents:
        for place, token in zip(found.places, tokens, strict=False):
            for one in pick.guesses:
                if one.parent == place - 1:
                    _learn(acceptance, record, one, one.token == token)
        return
    for one, token in zip(record.under_way, tokens, strict=False):
        _learn(acceptance, record, one, one.token == token)
        if one.token != token:
            break
    left = len(pick.sequence.guess)
    record.under_way = record.under_way[len(record.under_way) - left :] if left else []


def learn_draft(
    acceptance: Acceptance, record: GuessRecord, mirror: DraftMirror, sequence: Sequence
) -> None:
    """From every guess of the draft model in the place of a token that is known now, sent or not:
    a draft that is of no use shows when it would be again."""
    for nodes, token in mirror.know(sequence.tokens):
        for node in nodes:
            evidence = Evidence(Source.MODEL, node.chance)
            acceptance.learn(evidence, record.own, node.token == token)
        if nodes:
            best = max(nodes, key=lambda node: node.chance)
            record.own.add_best(best.token == token)


def _learn(acceptance: Acceptance, record: GuessRecord, guess: Candidate, is_hit: bool) -> None:
    for one in guess.evidence:
        if one.source is not Source.MODEL:
            acceptance.learn(one, record.own, is_hit)
