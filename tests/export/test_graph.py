from __future__ import annotations

import pytest
import transformers

from meshinfer.errors import StageFailed
from meshinfer.weights.export.graph import refuse_unsupported
from tests.export.tiny_checkpoints import ARCHITECTURES


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_what_we_promise_is_exported(architecture: str) -> None:
    refuse_unsupported(architecture)


@pytest.mark.parametrize("architecture", ["deepseek_v3", "exaone4", "qwen3_next", "dbrx"])
def test_what_the_exporter_shuts_out_is_named_with_both_versions(architecture: str) -> None:
    with pytest.raises(StageFailed) as caught:
        refuse_unsupported(architecture)
    assert architecture in caught.value.cause
    assert transformers.__version__ in caught.value.cause


@pytest.mark.parametrize("architecture", ["no_such_model", "bert"])
def test_what_the_exporter_does_not_know_is_named(architecture: str) -> None:
    with pytest.raises(StageFailed, match=f"of the type '{architecture}'"):
        refuse_unsupported(architecture)
