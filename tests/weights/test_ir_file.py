from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.ir_file import read_outline

CONST = """<layer id="0" name="c" type="Const" version="opset1">
<data element_type="u4" shape="4, 2" offset="2" size="4" /></layer>"""
INFORMATION = """<rt_info><info name="OpenVINO Runtime" value="2026" />
<bos_token_id value="1" /><chat_template value="a &lt;b> &#10;c" />
<nncf><weight_compression><mode value="int4_sym" /></weight_compression></nncf></rt_info>"""


def _write(folder: Path, layers: str = CONST, after: str = INFORMATION) -> Path:
    xml = folder / "m.xml"
    xml.write_text(
        f'<?xml version="1.0"?><net name="m" version="11"><layers>{layers}</layers>{after}</net>'
    )
    (folder / "m.bin").write_bytes(bytes(8))
    return xml


def test_what_the_file_says_about_itself(tmp_path: Path) -> None:
    found = read_outline(_write(tmp_path))
    assert found.weights == {"u4": 4}
    assert found.information == {
        ("OpenVINO Runtime",): "2026",
        ("bos_token_id",): "1",
        ("chat_template",): "a <b> \nc",
        ("nncf", "weight_compression", "mode"): "int4_sym",
    }


def test_what_layers_say_is_not_taken_for_the_model_s(tmp_path: Path) -> None:
    layer = '<layer type="X"><rt_info><bos_token_id value="9" /></rt_info></layer>'
    assert read_outline(_write(tmp_path, layer, "")).information == {}


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (CONST.replace('size="4"', 'size="40"'), "m|c"),
        (CONST.replace('offset="2"', 'offset="6"'), "outside"),
        ("<a>" * 100 + "</a>" * 100, "nested without end"),
        ("<a>", "cannot be read"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, layers: str, words: str) -> None:
    with pytest.raises(ShardCorrupt, match=words):
        read_outline(_write(tmp_path, layers))


def test_other_xml_and_missing_files(tmp_path: Path) -> None:
    xml = _write(tmp_path)
    xml.write_text("<html></html>")
    with pytest.raises(ShardCorrupt, match="no OpenVINO IR"):
        read_outline(xml)
    (tmp_path / "m.bin").unlink()
    with pytest.raises(ShardCorrupt, match=r"m\.bin is missing"):
        read_outline(xml)
