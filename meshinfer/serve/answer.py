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
        """More of it, token by token: a step may bring several. Sets the sequence's `finish` when a
        stop string is complete: nothing of it, nor of what follows, is in any Delta."""
        sequence = self.sequence
        text, taken, stopped = "", 0, False
        while taken < len(drawn) and not stopped:
            one = drawn[taken]
            taken += 1
            ends = sequence.finish is not None and taken == len(drawn)
            more, stopped = self._feed(one, ends)
            text += more
        if stopped:
            sequence.finish = FinishReason.STOP
            sequence.drop(len(drawn) - taken)
        logprobs: tuple[TokenLogprob, ...] = ()
        if sequence.sampling.logprobs is not None:
            self.shown_bytes += len(text.encode())
            all_shown = sequence.finish is not None and not stopped
            logprobs = self._release(len(self.held) if all_shown else 0)
        return Delta(text, tuple(one.token for one in drawn[:taken]), self.choice, logprobs)

    def _feed(self, one: Sampled, ends: bool) -> tuple[str, bool]:
        """Text that may be shown, and whether a stop string is complete."""
        sequence = self.sequence
        text, stopped = "", False
        # the token that ended the answer is no part of its text
        if not (ends and one.token in sequence.stop_tokens):
            if sequence.sampling.logprobs is not None:
                self.held.append(self._logprob(one))
            text, stopped = self.stops.feed(self.text.feed(one.token))
        if ends and not stopped:
            rest, stopped = self.stops.feed(self.text.finish())
            text += rest if stopped else rest + self.stops.finish()
        return text, stopped

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
