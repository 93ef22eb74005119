"""The real SmolLM2-135M: split equals whole, the tokenizer keeps its promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.core.model import UnitRange
from meshinfer.core.request import ChatMessage
from meshinfer.engine.detokenizer import Detokenizer
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.errors import ContextTooLong, UsageError
from meshinfer.node.verify import verify

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

TEXTS = {
    "english": "The capital of France is Paris, isn't it?\n\n  Yes.",
    "chinese": "你好，世界。聪明的人工智能。",
    "family": "👩‍👩‍👧‍👦 and 🇩🇪🇯🇵",
    "accents": "Zoë Łukasz naïve café",
    "thai": "สวัสดีชาวโลก",
    "arabic": "مرحبا بالعالم",
    "code": "def f(x):\n\treturn {'a': x ** 2}  # ok\r\n",
}


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> GenAiTokenizer:
    return GenAiTokenizer.load(smollm2)


def cut_at(*ends: int) -> tuple[UnitRange, ...]:
    bounds = (0, *ends, 62)
    return tuple(UnitRange(first, end) for first, end in zip(bounds, bounds[1:], strict=False))


def computes_in(precision: str) -> bool:
    import openvino as ov

    offered = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return precision == "f32" or precision.upper() in offered


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_smollm2_split_equals_whole_bit_for_bit(smollm2: Path, precision: str) -> None:
    """2, 3 and 5 stages, between layers and inside them; prefill and 64 decode steps of three
    sequences of different lengths at once.

    A CPU that cannot compute in bf16 has nothing to compare in it: then `verify` must refuse."""
    if not computes_in(precision):
        with pytest.raises(UsageError, match=f"cannot compute in {precision}"):
            verify(smollm2, precisions=(precision,))
        return
    report = verify(
        smollm2, stages=(2, 3, 5), precisions=(precision,), steps=64, sequences=3, threads=2
    )
    assert [(check.stages, check.precision) for check in report.checks] == [
        (stages, precision) for stages in (2, 2, 3, 3, 5, 5)
    ]
    assert [check.difference for check in report.checks] == [0.0] * 6
    assert report.not_run == ()


def test_smollm2_with_embedding_and_head_by_themselves(smollm2: Path) -> None:
    report = verify(smollm2, steps=8, cuts=[cut_at(1, 13, 30, 61)], threads=2)
    assert [check.difference for check in report.checks] == [0.0] * len(report.checks)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_streamed_text_equals_the_tokenizers_own_decoding(
    smollm2: Path, tokenizer: GenAiTokenizer, text: str
) -> None:
    import openvino_genai

    ids = tokenizer.encode_text(text)
    stream = Detokenizer(tokenizer.vocabulary(), tokenizer.special_tokens()).stream()
    chunks = [stream.feed(token) for token in ids]
    assert "\ufffd" not in "".join(chunks)
    assert "".join(chunks) + stream.finish() == text
    assert openvino_genai.Tokenizer(str(smollm2)).decode(ids) == text


def test_a_chat_is_what_the_models_template_says(tokenizer: GenAiTokenizer) -> None:
    """C12: the template's text and nothing else, with no second beginning."""
    ids = tokenizer.encode_chat([ChatMessage("system", "Be kind."), ChatMessage("user", "Hi")])
    vocabulary = tokenizer.vocabulary()
    assert b"".join(vocabulary[token] for token in ids) == (
        b"<|im_start|>system\nBe kind.<|im_end|>\n"
        b"<|im_start|>user\nHi<|im_end|>\n"
        b"<|im_start|>assistant\n"
    )
    assert (ids.count(1), ids.count(2)) == (3, 2)


def test_plain_text_gets_no_token_that_the_tokenizer_does_not_add(
    tokenizer: GenAiTokenizer,
) -> None:
    assert tokenizer.encode_text("Hello") == [19556]


def test_special_and_end_tokens(tokenizer: GenAiTokenizer) -> None:
    assert tokenizer.special_tokens() == set(range(17))
    assert tokenizer.end_token() == 2
    assert tokenizer.vocabulary()[1] == b"<|im_start|>"


def test_a_prompt_beyond_what_the_tokenizer_reads_is_refused(tokenizer: GenAiTokenizer) -> None:
    assert len(tokenizer.encode_text("a " * 4000)) >= 4000
    with pytest.raises(ContextTooLong, match="8192"):
        tokenizer.encode_text("a " * 9000)
