"""Answers that must be JSON, fit a schema, a regex or a grammar: which tokens may come next.

A Grammar goes in, masks over the model's logits come out, by llguidance. Runs on the leader, beside
the tokenizer: masks travel in the steps, so that no other PC needs the vocabulary.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.request import Grammar, GrammarKind
from meshinfer.engine.grammar_check import PARAM, check_grammar
from meshinfer.engine.grammar_source import MOST_TEXT, matcher, serialised, short_reason
from meshinfer.engine.grammar_tokens import ForcedText, text_tokens
from meshinfer.errors import InvalidRequest, StageFailed

_KEPT_GRAMMARS = 16  # an ordinary one takes 5 MB, a hostile one up to TrialLimits.memory_bytes
_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class _Bits:
    """A little-endian bit per token each, in words of 32 bits."""

    text: NDArray[np.uint8]  # tokens that may stand in an answer
    end: NDArray[np.uint8]  # tokens that end one


class GrammarCompiler:
    """Constraints for one model. `size` is the width of its logits; it may exceed the vocabulary.

    `special` and `end_tokens` are never text. `encode` gives the ids of a text as the model was
    taught; text that a grammar leaves no choice about is written in these.
    """

    def __init__(
        self,
        vocabulary: Mapping[int, bytes],
        size: int,
        special: Collection[int],
        end_tokens: Collection[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self._tokens = text_tokens(vocabulary, size, {*special, *end_tokens})
        self._forced = ForcedText(self._tokens, encode)
        self._bits = _Bits(
            text=_bits((token for token, data in enumerate(self._tokens) if data), size),
            end=_bits((token for token in end_tokens if 0 <= token < size), size),
        )
        self._end_tokens = frozenset(end_tokens)
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[Grammar, Constraint] = OrderedDict()

    def compile(self, grammar: Grammar) -> Constraint:
        """At the beginning of an answer. Blocks: a second the first time, a quarter for a new
        grammar, microseconds for a known one. Safe for several threads, one at a time.

        Raises InvalidRequest (param "response_format"): the grammar is wrong or too large.
        """
        with self._lock:
            known = self._compiled.get(grammar)
            if known is None:
                known = self._compiled[grammar] = self._compile(grammar)
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > _KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
            return known.copy()

    def _compile(self, grammar: Grammar) -> Constraint:
        _check_text(grammar.text)
        if grammar.kind is not GrammarKind.JSON:  # that one is ours
            check_grammar(grammar)
        made = matcher(self._trie(), serialised(grammar))
        if made.is_error():
            raise _refusal(made)
        constraint = Constraint(made, self._bits, self._end_tokens)
        constraint.mask()  # a grammar that explodes does so at its first token, and here it may
        return constraint

    def _trie(self) -> Any:
        """llguidance's form of the vocabulary, made once: a second for 150 000 tokens."""
        if self._tokenizer is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            wrapper = TokenizerWrapper(self._forced)
            self._tokenizer = LLTokenizer(wrapper, eos_token=[self._forced.eos_token_id])
        return self._tokenizer


class Constraint:
    """How far one choice has come in its grammar. Made by the compiler; one thread at a time.

    Methods raise InvalidRequest when the grammar leads to a place where no token of the model fits,
    or grows beyond llguidance's limits there.
    """

    __slots__ = ("_bits", "_end_tokens", "_has_ended", "_has_text", "_mask", "_matcher")

    def __init__(self, made: Any, bits: _Bits, end_tokens: frozenset[int]) -> None:
        self._matcher = made
        self._bits = bits
        self._end_tokens = end_tokens
        self._mask: bytes | None = None  # None: not computed since the last token
        self._has_text = True  # whether a token of text may follow; known with the mask
        self._has_ended = False

    def mask(self) -> bytes:
        """A little-endian bit for each token that may come next, in words of 32 bits.

        End tokens are allowed exactly where the grammar may end. A complete answer of a model
        without end tokens has a mask that allows nothing: ask `is_complete` first.
        """
        if self._mask is None:
            self._mask = self._next_mask()
        return self._mask

    def accept(self, token: int) -> None:
        """`token` was drawn. Raises StageFailed when the mask forbids it; nothing changes then."""
        mask = self.mask()
        if not 0 <= token < 8 * len(mask) or not mask[token >> 3] >> (token & 7) & 1:
            raise StageFailed(
                f"Token {token} was drawn, which the grammar forbids.", "This is a bug: report it."
            )
        if token in self._end_tokens:
            self._has_ended = True
        elif not self._matcher.consume_token(token):
            raise _refusal(self._matcher)
        self._mask = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end token may follow."""
        self.mask()
        return not self._has_text

    def copy(self) -> Constraint:
        """An independent one at the same place: 10 us."""
        twin = Constraint(self._matcher.deep_copy(), self._bits, self._end_tokens)
        twin._mask, twin._has_text, twin._has_ended = self._mask, self._has_text, self._has_ended
        return twin

    def _next_mask(self) -> bytes:
        ends = self._bits.end
        if self._has_ended:
            self._has_text = False
            return ends.tobytes()
        found = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise _refusal(self._matcher)
        allowed = found[: len(ends)] & self._bits.text
        self._has_text = bool(allowed.any())
        # Asked after the mask: llguidance notices some ends only while it computes one.
        if self._matcher.is_accepting():
            allowed |= ends
        elif not self._has_text:
            raise InvalidRequest(
                "The grammar comes to a place where no text token of this model may follow.",
                "Name no special tokens in it, and make every way through it end.",
                PARAM,
            )
        return allowed.tobytes()


def _bits(tokens: Any, size: int) -> NDArray[np.uint8]:
    flags = np.zeros(-(-size // _WORD_BITS) * _WORD_BITS, np.bool_)
    flags[list(tokens)] = True
    return np.packbits(flags, bitorder="little")


def _check_text(text: str) -> None:
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "The grammar or schema is not valid Unicode.",
            "Send UTF-8 without lone surrogates.",
            PARAM,
        ) from error
    if length > MOST_TEXT:
        raise InvalidRequest(
            f"The grammar or schema has {length} bytes; {MOST_TEXT} are allowed.",
            "Shorten it.",
            PARAM,
        )


def _refusal(made: Any) -> InvalidRequest:
    reason = short_reason(made.get_error())
    return InvalidRequest(
        f"The grammar or schema cannot be used: {reason}.", "Mend or simplify it.", PARAM
    )
