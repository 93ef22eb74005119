"""The tiny model on disk, once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.weights.tiny import tiny_model


@pytest.fixture(scope="session")
def tiny_xml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import openvino as ov

    xml = tmp_path_factory.mktemp("tiny") / "openvino_model.xml"
    ov.save_model(tiny_model(layers=2), xml, compress_to_fp16=False)
    return xml
