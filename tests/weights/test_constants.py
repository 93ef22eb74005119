from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.errors import MeshInferError, ShardCorrupt, StageFailed
from meshinfer.weights.constants import MAX_XML_BYTES, Constant, read_constants, rewrite, scan


def const(name: str = "w", data: str = 'element_type="f32" shape="4" offset="0" size="16"') -> str:
    return f'<layer id="1" name="{name}" type="Const" version="opset1"><data {data} /></layer>'


def net(*layers: str) -> bytes:
    return f'<?xml version="1.0"?><net><layers>{"".join(layers)}</layers></net>'.encode()


def read(tmp_path: Path, *layers: str, weights: int = 100) -> tuple[Constant, ...]:
    (tmp_path / "m.xml").write_bytes(net(*layers))
    return read_constants(tmp_path / "m.xml", weights)


def test_constants_are_read_in_order_with_everything_that_is_said_of_them(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '<layer id="0" name="x" type="Parameter"><data shape="?" element_type="i64" /></layer>',
        const("a &amp; &lt;b&gt;"),
        const("scalar", "element_type='i64' shape='' offset='16' size='8'"),
        const("codes", 'element_type="u4" shape="3, 5" offset="24" size="8"'),
        const("nothing", 'element_type="f32" shape="0, 4" offset="0" size="1"'),
    )
    assert [(one.name, one.offset, one.size, one.element_type, one.shape) for one in found] == [
        ("a & <b>", 0, 16, "f32", (4,)),
        ("scalar", 16, 8, "i64", ()),
        ("codes", 24, 8, "u4", (3, 5)),
        ("nothing", 0, 1, "f32", (0, 4)),
    ]
    assert [one.elements for one in found] == [4, 1, 15, 0]


def test_constants_in_the_body_of_a_loop_are_read(tmp_path: Path) -> None:
    body = f"<body><layers>{const('inner')}</layers></body>"
    loop = f'<layer id="2" name="loop" type="Loop"><data x="1" />{body}<data y="2" /></layer>'
    assert [one.name for one in read(tmp_path, loop, const("outer"))] == ["inner", "outer"]


def test_the_same_bytes_may_be_two_constants(tmp_path: Path) -> None:
    assert len(read(tmp_path, const("a"), const("b"))) == 2


F32 = 'element_type="f32" shape="4"'


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (f'{F32} offset="85" size="16"', "outside the model's .bin"),
        (f'{F32} offset="18446744073709551615" size="16"', "impossible sizes"),
        (f'{F32} offset="-1" size="16"', "impossible sizes"),
        (f'{F32} offset="0" size="17"', "cannot have 17 bytes"),
        (f'{F32} offset="0"', "cannot be read"),
        (f'{F32} offset="x" size="16"', "cannot be read"),
        ('element_type="f32" shape="4,-1" offset="0" size="16"', "impossible sizes"),
        ('element_type="f32" shape="4,?" offset="0" size="16"', "cannot be read"),
        ('element_type="u4" shape="3" offset="0" size="1"', "cannot have 1 bytes"),
        (f'{F32} offset="0" size="16" path="../x"', "not known here"),
        (f'{F32} offset="0" size="16" location="https://x/y"', "not known here"),
    ],
)
def test_a_constant_that_cannot_be_is_refused_by_name(tmp_path: Path, data: str, what: str) -> None:
    with pytest.raises((ShardCorrupt, StageFailed), match=f"constant 'guilty'.*{what}"):
        read(tmp_path, const("guilty", data))


def test_constants_that_overlap_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardCorrupt, match="overlap at byte 8"):
        read(tmp_path, const("a"), const("b", f'{F32} offset="8" size="16"'))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<net>",
        b"<net><layer></net>",
        b'<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa">]><net>&a;</net>',
        b'<!DOCTYPE net SYSTEM "file:///etc/passwd"><net/>',
        net(const()).replace(b"<?xml", b"<?xml ").decode().encode("utf-16"),
        b"<a>" * 100_000,
    ],
)
def test_xml_that_no_exporter_writes_is_refused(text: bytes) -> None:
    with pytest.raises(MeshInferError):
        scan(text)


def test_xml_beyond_all_measure_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.xml").open("wb") as file:
        file.truncate(MAX_XML_BYTES + 1)
    with pytest.raises(ShardCorrupt, match="over 268435456"):
        read_constants(tmp_path / "m.xml", 1)


def test_only_offsets_and_sizes_are_rewritten() -> None:
    text = net(
        const("a"),
        const('offset="0"'.replace('"', "&quot;")),
        const("c", f'{F32} size="16" offset="0"'),
    )
    found = scan(text)
    changed = rewrite(text, [(one, 64 * n, one.size) for n, one in enumerate(found)])
    assert [(one.name, one.offset, one.size) for one in scan(changed)] == [
        ("a", 0, 16),
        ('offset="0"', 64, 16),
        ("c", 128, 16),
    ]
    assert rewrite(changed, [(one, 0, one.size) for one in scan(changed)]) == text
