from __future__ import annotations

import pytest

from meshinfer.errors import TimedOut
from meshinfer.weights.hub_errors import gated_remedy, hub_errors, is_network_error, page


class TransportError(Exception):
    """As httpx and httpx2 call what goes wrong on the way."""


class ConnectError(TransportError):
    pass


@pytest.mark.parametrize("error", [ConnectError("x"), ConnectionResetError(), TimeoutError()])
def test_errors_of_the_way_are_told_alike(error: Exception) -> None:
    assert is_network_error(error)
    with pytest.raises(TimedOut, match=r"cannot be reached for o/m") as caught, hub_errors("o/m"):
        raise error
    assert "proxy" in caught.value.remedy


def test_a_bug_of_ours_passes() -> None:
    assert not is_network_error(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError), hub_errors("o/m"):
        raise ZeroDivisionError


def test_the_page_of_a_repository_is_that_of_the_hub_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert page("o/m") == "https://huggingface.co/o/m"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert page("o/m") == "https://mirror.example/o/m"
    assert "https://mirror.example/o/m" in gated_remedy("o/m")
    assert "HF_TOKEN" in gated_remedy("o/m")
