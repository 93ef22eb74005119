from __future__ import annotations

import pytest

from meshinfer.errors import UsageError
from meshinfer.weights.export.installed import export_versions


def test_what_is_missing_is_named_with_what_installs_it() -> None:
    with pytest.raises(UsageError) as caught:
        export_versions(("openvino", "no-such-distribution"))
    assert "no-such-distribution" in caught.value.cause
    assert caught.value.remedy.endswith("pip install 'meshinfer-fleet[export]'")
    assert "\n" not in str(caught.value)


def test_versions_are_told_without_the_build() -> None:
    assert export_versions(("openvino",)).startswith("openvino 20")
    assert "+" not in export_versions(("openvino", "numpy"))
