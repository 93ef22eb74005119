"""The forward conversation: large prompts and every event survive the trip."""

from __future__ import annotations

import pytest

from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.request import (
    ChatMessage,
    Delta,
    Finished,
    FinishReason,
    GenerationRequest,
    Sampling,
    Started,
)
from meshinfer.wire import forward, registry

ID = RequestId("r1")


def request(content: str) -> GenerationRequest:
    messages = (ChatMessage("user", content),)
    return GenerationRequest(
        ID, ModelId("m"), messages, None, Sampling(seed=2**64 - 1), None, ("\n",)
    )


@pytest.mark.parametrize(
    "content",
    ["", "Grüße aus 東京 🎉", "\x00\x1b[31m", "x" * (16 << 20)],
    ids=["empty", "scripts", "control", "16 MB"],
)
def test_a_request_is_forwarded_unchanged(content: str) -> None:
    message = forward.Ask(request(content))
    assert registry.unpack(registry.pack(message), registry.welcome("mesh"))[0] == message


@pytest.mark.parametrize(
    "message",
    [
        forward.AskStarted(ID, Started(12)),
        forward.AskDelta(ID, Delta("", (1, 2, 3))),
        forward.AskDelta(ID, Delta("ß", ())),
        forward.AskFinished(ID, Finished(FinishReason.LENGTH, 1, 2, 0.5, 0.25)),
        forward.AskFailed(ID, "overloaded", "cause", "remedy", None),
        forward.AskFailed(ID, "invalid_request", "cause", "remedy", "stop"),
        forward.AskCancel(ID),
        forward.FleetReport('{"a": 1}'),
    ],
)
def test_every_event_comes_back(message: object) -> None:
    assert registry.unpack(registry.pack(message), registry.welcome("mesh"))[0] == message
