from __future__ import annotations

import pytest

from meshinfer.weights.plain_name import objection


@pytest.mark.parametrize(
    "name",
    ["openvino_model.xml", "smollm2-135m", "Meta Llama 3.1.bin", "a", "qwen2.5-coder-1.5b", "COM"],
)
def test_ordinary_names_pass(name: str) -> None:
    assert objection(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../../x", "..\\x", "C:\\x", "/etc/x", "a%2e%2e/x", "a%2e", "a:b", "x\0y",
        "a/b", "a\\b", ".hidden", "-rf", " x", "x ", "x.", "~", "a\n", "é", "a" * 101, "x*", "<x>",
        "CON", "con", "Con.txt", "NUL", "aux.bin", "prn.", "COM1", "com9.xml", "LPT1.tar.gz",
        "CONIN$",
    ],
)  # fmt: skip
def test_names_that_leave_the_folder_or_are_devices_are_refused(name: str) -> None:
    """S05, and what Windows reserves."""
    assert objection(name)
