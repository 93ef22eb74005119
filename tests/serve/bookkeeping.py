"""A stage that only keeps the books: it refuses what a real one would, and draws by arithmetic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from meshinfer.core.request import GREEDY, Sampling
from meshinfer.core.step import Row, Sampled, Step
from meshinfer.engine.blocks import BlockTable
from meshinfer.errors import CacheLost
from meshinfer.serve import sequence as sequences
from meshinfer.serve.scheduler import Advance, Scheduler

STOP = 999


class BookkeepingStage:
    """The block table of the real engines, and the token in every slot of every sequence."""

    def __init__(self, cache_tokens: int, block_size: int) -> None:
        self.table = BlockTable(cache_tokens // block_size, block_size)
        self.tokens: dict[int, list[int]] = {}
        self.computed = 0

    def run(self, step: Step) -> list[Sampled] | CacheLost:
        self.table = self.table.released(step.released)
        for key in step.released:
            self.tokens.pop(key, None)
        try:
            placement = self.table.placed(step.rows)
        except CacheLost as lost:
            return lost
        self.table = placement.table
        before = {key: list(tokens) for key, tokens in self.tokens.items()}
        drawn, taken = [], 0
        for row in step.rows:
            source = row.sequence if row.fork_from is None else row.fork_from
            held = list(before.get(source, []))
            for target, slot in enumerate(row.kept, row.position - len(row.kept)):
                held[target] = held[slot]
            assert len(held) >= row.position, "a gap in the cache"
            del held[row.position :]
            new = list(step.tokens[taken : taken + row.count])
            taken += row.count
            self.tokens[row.sequence] = held + new
            drawn += draws(row, held, new)
        assert taken == len(step.tokens)
        self.computed += taken
        return drawn

    def forget(self, key: int) -> None:
        """As if its lease had run out."""
        self.table = self.table.released((key,))
        self.tokens.pop(key, None)


def draws(row: Row, held: list[int], new: list[int]) -> list[Sampled]:
    """Behind each of the row's last `logits` tokens."""
    paths: list[list[int]] = []
    for place, token in enumerate(new):
        parent = row.parents[place] if row.parents else place - 1
        paths.append([*(paths[parent] if parent >= 0 else ()), token])
    width = len(row.mask) // max(1, row.logits)
    found = []
    for index, path in enumerate(paths[row.count - row.logits :]):
        mask = row.mask[index * width : (index + 1) * width]
        found.append(Sampled(allowed(next_token(held + path), mask)))
    return found


def allowed(token: int, mask: bytes) -> int:
    """The first token from this one on that the mask allows; an empty mask allows all."""
    if not mask:
        return token
    size = 8 * len(mask)
    places = ((token + step) % size for step in range(size))
    return next(one for one in places if mask[one >> 3] >> (one & 7) & 1)


def next_token(tokens: Sequence[int]) -> int:
    """Depends on every token, so that a lost or repeated one shows."""
    return (sum((index + 1) * token for index, token in enumerate(tokens)) * 31 + 7) % 997


def sequence(
    prompt: list[int], limit: int, sampling: Sampling = GREEDY, user: str = ""
) -> sequences.Sequence:
    return sequences.Sequence(list(prompt), len(prompt), sampling, limit, (STOP,), user=user)


def alone(prompt: list[int], limit: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(limit):
        tokens.append(next_token(tokens))
    return tokens


WORDS = [list(range(10, 50)), list(range(10, 30)) + list(range(60, 90)), list(range(200, 230))]
"""Prompts are made of these, so that some begin alike."""

When = list[tuple[int, int]]


class Disturbed:
    """Requests that come one a turn, in words of WORDS and with a limit each; clients that leave
    (who, when), caches that the stage loses (when, which)."""

    def __init__(
        self,
        scheduler: Scheduler,
        stage: BookkeepingStage,
        asked: list[tuple[list[int], int]],
        losses: When,
        leave: When,
    ) -> None:
        self._scheduler, self._stage = scheduler, stage
        self._losses, self._leave = losses, leave
        self.gone: set[int] = set()
        self.sequences = [
            sequence(sum((WORDS[word] for word in words), []) + [7], limit)
            for words, limit in asked
        ]

    def interfere(self, turn: int) -> None:
        if turn < len(self.sequences):
            self._scheduler.admit(self.sequences[turn])
        for who, when in self._leave:
            if when == turn and who < min(turn, len(self.sequences)):
                self._scheduler.end(self.sequences[who])
                self.gone.add(who)
        held = self._stage.tokens
        for when, which in self._losses:
            if when == turn and held:
                self._stage.forget(sorted(held)[which % len(held)])

    def check(self) -> None:
        """Each that stayed has the answer of its lone run, who left a beginning of it; nothing is
        under way and no stage holds what nobody will ask for."""
        for index, one in enumerate(self.sequences):
            whole = alone(one.tokens[: one.prompt_length], one.limit)
            assert one.tokens == (whole if index not in self.gone else whole[: len(one.tokens)])
        scheduler = self._scheduler
        assert scheduler.running == scheduler.waiting == scheduler.in_flight == 0
        held = set(scheduler.renew())
        assert set(self._stage.tokens) <= held, "a stage holds what nobody will ask for"


class Drive:
    """Steps go through the stage in order and come back in order; `before_each` may interfere."""

    def __init__(self, scheduler: Scheduler, stage: BookkeepingStage) -> None:
        self.scheduler = scheduler
        self.stage = stage
        self.flying: deque[tuple[Step, list[Sampled] | CacheLost]] = deque()
        self.steps: list[Step] = []

    def send(self) -> None:
        while (step := self.scheduler.next_step()) is not None:
            self.steps.append(step)
            self.flying.append((step, self.stage.run(step)))

    def take(self) -> list[Advance]:
        step, outcome = self.flying.popleft()
        if isinstance(outcome, CacheLost):
            self.scheduler.recompute(step.number, outcome.sequences)
            return []
        return self.scheduler.commit(step.number, outcome)

    def run(self, before_each: Callable[[int], None] = lambda turn: None, least: int = 0) -> None:
        """Until nothing is left; bounded."""
        for turn in range(2_000):
            before_each(turn)
            self.send()
            if self.flying:
                self.take()
            elif turn >= least and self.scheduler.held_s() is None:
                return
        raise AssertionError("the scheduler never came to rest")
