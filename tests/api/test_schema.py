"""A19, A23, A26, C11: what a body may say."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from meshinfer.api.schema import Call, parse_chat, parse_completion
from meshinfer.core.ids import ModelId
from meshinfer.core.request import ChatMessage, Grammar, GrammarKind, Sampling
from meshinfer.errors import InvalidRequest, ModelNotFound, NotReady
from tests.api.scripted_door import MODEL
from tests.api.served import CHAT, TEXT

SERVED = (MODEL, replace(MODEL, model=ModelId("qwen")))
DRAWN = 77
ASKER = "address:192.0.2.1"


def chat(**more: Any) -> Call:
    return parse_chat(CHAT | more, SERVED, lambda _: DRAWN, ASKER)


def completion(**more: Any) -> Call:
    return parse_completion(TEXT | more, SERVED, lambda _: DRAWN, ASKER)


def test_a_plain_chat() -> None:
    call = chat()
    assert call.request.model == MODEL.model
    assert call.request.messages == (ChatMessage("user", "hi"),)
    assert call.request.prompt is None
    assert call.request.sampling == Sampling(1.0, 1.0, 0, DRAWN)
    assert call.request.max_tokens is None
    assert call.request.stop == ()
    assert call.request.id == f"{DRAWN:032x}"
    assert call.request.choices == 1
    assert call.request.grammar is None
    assert call.request.priority == 0
    assert call.request.user == ASKER
    assert not call.stream
    assert not call.include_usage
    assert not call.has_logprobs


def test_null_counts_as_absent() -> None:
    names = (
        "temperature", "top_p", "top_k", "seed", "max_tokens", "stop", "stream", "n", "best_of",
        "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
        "logprobs", "top_logprobs", "response_format", "guided_regex", "priority", "user",
    )  # fmt: skip
    assert chat(**dict.fromkeys(names)) == chat()
    assert chat(stream_options=None) == chat()


def test_everything_that_may_be_set() -> None:
    call = chat(
        temperature=0, top_p=0.5, top_k=40, seed=5, max_tokens=9, stop=["a", "b", "a"],
        stream=True, stream_options={"include_usage": True}, n=3, best_of=3, priority=-7,
        min_p=0.25, repetition_penalty=1.5, presence_penalty=-2, frequency_penalty=2,
        logprobs=True, top_logprobs=20, logit_bias={"5": -100, "05": 1.5, "2147483647": 100},
        user="anna", response_format={"type": "json_object"},
    )  # fmt: skip
    assert call.request.sampling == Sampling(
        0.0, 0.5, 40, 5, 0.25, 1.5, -2.0, 2.0, 20, ((5, 1.5), (2**31 - 1, 100.0))
    )
    assert call.request.choices == 3
    assert call.request.priority == -7
    assert call.request.user == "anna"
    assert call.request.grammar == Grammar(GrammarKind.JSON, "")
    assert call.has_logprobs
    assert call.request.max_tokens == 9
    assert call.request.stop == ("a", "b")
    assert call.stream
    assert call.include_usage


def test_the_newer_limit_wins() -> None:
    assert chat(max_tokens=9, max_completion_tokens=3).request.max_tokens == 3
    assert chat(max_completion_tokens=3).request.max_tokens == 3
    assert chat(max_tokens=10**30).request.max_tokens == 2**31 - 1


@pytest.mark.parametrize(
    ("seed", "taken"), [(0, 0), (2**64 - 1, 2**64 - 1), (-1, 2**64 - 1), (-(2**63), 2**63)]
)
def test_seeds_fit_the_wire(seed: int, taken: int) -> None:
    assert chat(seed=seed).request.sampling.seed == taken


def test_top_k_below_one_means_no_limit() -> None:
    assert chat(top_k=-1).request.sampling.top_k == 0
    assert chat(top_k=0).request.sampling.top_k == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", []),
        ("top_k", -2),
        ("top_k", 1.0),
        ("seed", 1.5),
        ("seed", "1"),
        ("seed", True),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 5.0),
        ("max_tokens", "5"),
        ("max_completion_tokens", 0),
        ("stream", "true"),
        ("stream", 1),
        ("stream_options", []),
        ("stop", ""),
        ("stop", [""]),
        ("stop", [None]),
        ("stop", 5),
        ("stop", {}),
        ("stop", ["a", 5]),
        ("stop", ["\ud83d"]),
        ("stop", [str(number) for number in range(5)]),
        ("stop", [str(number) for number in range(200)]),
        ("stop", "x" * 10_000),
        ("model", 5),
        ("messages", []),
        ("n", 0),
        ("n", 17),
        ("n", True),
        ("n", "2"),
        ("best_of", 2),
        ("best_of", 0),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 10.5),
        ("repetition_penalty", True),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", "0"),
        ("logprobs", 1),
        ("top_logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", True),
        ("logit_bias", []),
        ("logit_bias", {"-1": 0}),
        ("logit_bias", {"": 0}),
        ("logit_bias", {"a": 0}),
        ("logit_bias", {"\u0665": 0}),
        ("logit_bias", {"2147483648": 0}),
        ("logit_bias", {"9" * 5000: 0}),
        ("logit_bias", {"1": 100.5}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": None}),
        ("logit_bias", {"1": float("nan")}),
        ("logit_bias", {str(number): 0 for number in range(1025)}),
        ("priority", 1001),
        ("priority", -1001),
        ("priority", 0.5),
        ("user", 5),
        ("user", "x" * 513),
        ("user", "\ud83d"),
        ("response_format", "text"),
    ],
)
def test_wrong_values_name_their_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**{field: value})
    assert caught.value.param == field


def test_include_usage_must_be_a_flag() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(stream=True, stream_options={"include_usage": "yes"})
    assert caught.value.param == "include_usage"


@pytest.mark.parametrize(("stop", "taken"), [(None, ()), ([], ()), ("x", ("x",))])
def test_stops_that_add_nothing_or_one(stop: object, taken: tuple[str, ...]) -> None:
    assert chat(stop=stop).request.stop == taken


@pytest.mark.parametrize("model", ["SmolLM2-135m", "../x", "", None, "smollm2-135m ", "qwe"])
def test_only_exact_ids_are_served(model: str | None) -> None:
    with pytest.raises(ModelNotFound, match="'smollm2-135m', 'qwen'"):
        chat(model=model)


def test_the_second_model_is_found_too() -> None:
    assert chat(model="qwen").request.model == "qwen"


def test_without_any_model_the_client_should_wait() -> None:
    with pytest.raises(NotReady):
        parse_chat(CHAT, (), lambda _: DRAWN, ASKER)


def test_a_plain_completion() -> None:
    request = completion().request
    assert request.prompt == "hi"
    assert request.messages == ()
    assert request.max_tokens == 16  # OpenAI's default of this endpoint
    assert completion(prompt=["hi"]).request.prompt == "hi"
    assert completion(max_tokens=5).request.max_tokens == 5


@pytest.mark.parametrize("prompt", [None, "", [], [""], [1, 2], [[1, 2]], [5], ["a", "b"], {}])
def test_prompts_that_are_not_one_string(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_no_refusal_quotes_the_prompt() -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt="CANARY77\ud83d")
    assert "CANARY77" not in f"{caught.value} {caught.value.__cause__}"
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("field", ["top_p", "repetition_penalty"])
def test_what_is_all_but_zero_survives_the_wire(field: str) -> None:
    taken = getattr(chat(**{field: 5e-324}).request.sampling, field)
    assert taken == 1e-6
    assert struct.unpack("<f", struct.pack("<f", taken))[0] > 1e-30


def test_logprobs_of_a_chat() -> None:
    assert chat(logprobs=False, top_logprobs=0).request.sampling.logprobs is None
    assert chat(logprobs=True).request.sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).request.sampling.logprobs == 5


def test_logprobs_of_a_plain_completion() -> None:
    assert completion(logprobs=0).request.sampling.logprobs == 0
    assert completion(logprobs=5).request.sampling.logprobs == 5
    assert completion(logprobs=False).request.sampling.logprobs is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("logprobs", True), ("logprobs", 6), ("logprobs", -1), ("top_logprobs", 1)],
)
def test_wrong_logprobs_of_a_plain_completion(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(**{field: value})
    assert caught.value.param == field


def test_an_empty_user_is_nobody() -> None:
    assert chat(user="").request.user == ASKER
    assert chat(user="x" * 512).request.user == "x" * 512
