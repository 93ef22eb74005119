"""What only the OpenVINO stage does; the contract of all stages is in tests/contracts."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.engine.ports import Ports
from meshinfer.engine.selftest import record_answer, self_test
from meshinfer.errors import StageFailed
from meshinfer.weights.cut import cut
from tests.weights.tiny import tiny_model

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

TEXT = tuple(range(40, 70))
DETERMINISTIC = StageOptions(threads=1, cache_tokens=512, deterministic=True)


def has_bf16() -> bool:
    import openvino as ov

    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def prefill(*sequences: int) -> Step:
    rows = tuple(Row(sequence, 0, len(TEXT), 1) for sequence in sequences)
    return Step(0, rows, TEXT * len(sequences))


def test_cache_size_is_whole_blocks_of_the_device(tiny_xml: Path) -> None:
    stage = PagedStage.load(tiny_xml, StageOptions(threads=1, cache_tokens=100))
    assert (stage.shape.block_size, stage.shape.cache_tokens) == (32, 128)
    stage.close()


def test_a_model_in_memory_stays_as_it_was() -> None:
    model = tiny_model(layers=2)
    names = [port.any_name for port in model.inputs]
    answers = []
    for _ in range(2):
        stage = PagedStage.load(model, DETERMINISTIC)
        answers.append(np.array(stage.forward(prefill(1), None)))
        stage.close()
    assert [port.any_name for port in model.inputs] == names
    np.testing.assert_array_equal(*answers)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="Reading the stage's files failed"):
        PagedStage.load(tmp_path / "openvino_model.xml", DETERMINISTIC)


def test_an_unknown_device_is_named(tiny_xml: Path) -> None:
    with pytest.raises(StageFailed, match=r"TPU\.7"):
        PagedStage.load(tiny_xml, StageOptions(device="TPU.7"))


class TokenPort:
    names = frozenset({"input_ids"})

    def get_element_type(self) -> Any:
        import openvino as ov

        return ov.Type.i64


class FailingDevice:
    """A compiled embedding whose driver gives up while `broken` is set."""

    def __init__(self) -> None:
        self.inputs = [TokenPort()]
        self.broken = False
        self.output = np.zeros((0, 1, 4), np.float32)

    def create_infer_request(self) -> FailingDevice:
        return self

    def set_tensor(self, port: TokenPort, tensor: Any) -> None:
        self.output = np.repeat(tensor.data[:, :, None], 4, axis=2).astype(np.float32)

    def infer(self) -> None:
        if self.broken:
            raise RuntimeError("Exception from ocl_stream.cpp:365:\n[GPU] CL_OUT_OF_RESOURCES")

    def get_output_tensor(self, number: int) -> Any:
        assert number == 0
        return SimpleNamespace(data=self.output)


def test_a_failed_computation_leaves_the_cache_as_it_was_before_the_new_tokens() -> None:
    device = FailingDevice()
    ports = Ports(
        first=True,
        last=False,
        input_width=0,
        output_width=4,
        vocabulary_size=256,
        token_limit=256,
        has_attention=False,
    )
    stage = PagedStage(device, ports, StageOptions(), None)
    stage.forward(prefill(1), None)
    device.broken = True
    with pytest.raises(StageFailed, match=r"computation failed: \[GPU\] CL_OUT_OF_RESOURCES"):
        stage.forward(Step(2, (Row(1, 20, 1, 1), Row(2, 0, 1, 1)), (7, 8)), None)
    assert (stage.cached(1), stage.cached(2)) == (20, 0)
    device.broken = False
    output = stage.forward(Step(3, (Row(1, 20, 2, 1),), (7, 8)), None)
    np.testing.assert_array_equal(output, np.float32([[7] * 4, [8] * 4]))


@pytest.mark.parametrize("units", [(0, 6), (0, 1), (0, 3), (2, 3), (1, 5), (5, 6)], ids=str)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_self_test_passes_on_every_kind_of_stage(
    tiny_xml: Path, units: tuple[int, int], precision: str
) -> None:
    if precision == "bf16" and not has_bf16():
        pytest.skip("this CPU does not compute in bf16")
    model = cut(tiny_xml, UnitRange(*units))
    trusted = PagedStage.load(model, DETERMINISTIC)
    stage = PagedStage.load(model, StageOptions(threads=1, precision=precision, cache_tokens=512))
    result = self_test(stage, record_answer(trusted))
    assert result.rewind_difference == 0
    assert result.reference_difference is not None
    assert stage.cached(-1) == stage.cached(-2) == 0
    trusted.close()
    stage.close()


def test_another_model_fails_the_self_test_against_a_stored_answer(tiny_xml: Path) -> None:
    trusted = PagedStage.load(tiny_xml, DETERMINISTIC)
    answer = record_answer(trusted)
    trusted.close()
    stranger = PagedStage.load(tiny_model(layers=2, seed=1), DETERMINISTIC)
    with pytest.raises(StageFailed, match="stored answer"):
        self_test(stranger, answer)
    stranger.close()


def test_a_greedy_answer_does_not_depend_on_its_company(tiny_xml: Path) -> None:
    """C17, in deterministic mode: equal tokens; logits within the last bits of a sum."""
    stage = PagedStage.load(tiny_xml, DETERMINISTIC)

    def answer(sequences: list[int]) -> tuple[list[int], np.ndarray]:
        logits = np.array(stage.forward(prefill(*sequences), None))
        tokens: list[int] = []
        rows: list[np.ndarray] = []
        for position in range(len(TEXT), len(TEXT) + 20):
            tokens.append(int(logits[0].argmax()))
            rows.append(logits[0].copy())
            step = Step(
                1,
                tuple(Row(sequence, position, 1, 1) for sequence in sequences),
                tuple(
                    tokens[-1] if place == 0 else (sequence * 31 + position) % 256
                    for place, sequence in enumerate(sequences)
                ),
            )
            logits = np.array(stage.forward(step, None))
        stage.forward(Step(2, (), (), released=tuple(sequences)), None)
        return tokens, np.stack(rows)

    alone, alone_logits = answer([1])
    crowd, crowd_logits = answer(list(range(2, 10)))
    assert crowd == alone
    np.testing.assert_allclose(crowd_logits, alone_logits, rtol=0, atol=1e-4)
    stage.close()


def test_closing_returns_the_memory(tmp_path: Path) -> None:
    """P07: ten plans after each other do not add up."""
    import openvino as ov

    xml = tmp_path / "openvino_model.xml"
    ov.save_model(tiny_model(layers=4, hidden=256, vocabulary=4096), xml, compress_to_fp16=False)
    process = psutil.Process()
    ranges = (UnitRange(0, 5), UnitRange(5, 10))

    def loaded_and_closed(units: UnitRange) -> int:
        options = StageOptions(threads=1, cache_tokens=4096)
        stage = PagedStage.load(cut(xml, units), options)
        self_test(stage)
        stage.close()
        gc.collect()
        return int(process.memory_info().rss)

    settled = max(loaded_and_closed(ranges[index % 2]) for index in range(4))
    after = loaded_and_closed(ranges[0])
    for index in range(9):
        after = loaded_and_closed(ranges[index % 2])
    # One stage's weights and cache are 20 MB: keeping them would add 200.
    assert after < 1.1 * settled
