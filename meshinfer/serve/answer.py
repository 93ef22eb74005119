"""One answer on its way to whoever asked: drawn tokens become text, stop strings end it.

Pure; kept by the inbox, one for each choice of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshinfer.core.request import Delta, FinishReason, TokenLogprob
from meshinfer.core.step import Sampled
from meshinfer.engine.detokenizer import TextStream
from meshinfer.serve.sequence import Sequence
from meshinfer.serve.stop_filter import StopFilter


@dataclass(slots=True)
class Answer:
    """`first_token_s` and `admitted_s` are on the inbox's clock; 0 before there is any."""

    choice: int
    sequence: Sequence
    text: TextStream
    stops: StopFilter
    vocabulary: Mapping[int, bytes]
    admitted_s: float
    first_token_s: float = 0.0
    is_told: bool = False  # its Finished is on the way
    held: list[TokenLogprob] = field(default_factory=list)  # of text that is held back
    shown_bytes: int = 0  # of text, that no told log-probability accounts for

    def take(self, drawn: tuple[Sampled, ...]) -> Delta:
        """More of it. Sets the sequence's `finish` when a stop string is complete: nothing of it,
        nor of what follows, is in any Delta."""
        sequence = self.sequence
        # the token that ended the answer is no part of its text
        ended = sequence.finish is not None and drawn[-1].token in sequence.stop_tokens
        spoken = drawn[:-1] if ended else drawn
        text, stopped = self.stops.feed("".join(self.text.feed(one.token) for one in spoken))
        if not stopped and sequence.finish is not None:
            rest, stopped = self.stops.feed(self.text.finish())
            text += rest if stopped else rest + self.stops.finish()
        if stopped:
            sequence.finish = FinishReason.STOP
        logprobs: tuple[TokenLogprob, ...] = ()
        if sequence.sampling.logprobs is not None:
            self.held += [self._logprob(one) for one in spoken]
            self.shown_bytes += len(text.encode())
            all_shown = sequence.finish is not None and not stopped
            logprobs = self._release(len(self.held) if all_shown else 0)
        return Delta(text, tuple(one.token for one in drawn), self.choice, logprobs)

    def _release(self, count: int) -> tuple[TokenLogprob, ...]:
        """Log-probabilities wait as their text does, and those of a stop string are never told:
        the first `count`, and as many as have their whole text shown."""
        while count < len(self.held) and len(self.held[count].token) <= self.shown_bytes:
            self.shown_bytes -= len(self.held[count].token)
            count += 1
        released = tuple(self.held[:count])
        del self.held[:count]
        return released

    def _logprob(self, one: Sampled) -> TokenLogprob:
        names = self.vocabulary
        return TokenLogprob(
            names.get(one.token, b""),
            one.logprob,
            tuple((names.get(token, b""), value) for token, value in one.alternatives),
        )
