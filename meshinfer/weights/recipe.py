"""In which form the weights of a model are kept: what a person may choose when pulling one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshinfer.errors import UsageError


class WeightFormat(StrEnum):
    INT4 = "int4"  # symmetric
    INT4_ASYM = "int4-asym"  # with zero points: more accurate, and as fast on a CPU
    INT8 = "int8"
    F16 = "f16"
    BF16 = "bf16"
    ORIGINAL = "original"  # as the source has them


_FORMATS = f"Choose one of: {', '.join(WeightFormat)}."


def _format(text: str) -> WeightFormat:
    try:
        return WeightFormat(text)
    except ValueError as error:
        raise UsageError(f"{text[:60]!r} is no form of weights.", _FORMATS) from error


@dataclass(frozen=True, slots=True)
class Recipe:
    """Layers get `format`; embedding and head get INT8 when that is INT4, as NNCF does. The share
    of layers in INT4 is always 1.0: with less, which layers are spared would depend on the range
    that is compressed, and a stage would differ from the whole.

    `group_size` weights of a row share a scale; a row that it does not divide gets the largest
    power of two below that does, so that a range and the whole choose alike. `awq` scales channels
    before rounding, from the weights alone.
    """

    format: WeightFormat = WeightFormat.INT4_ASYM
    group_size: int = 128
    awq: bool = False

    def __post_init__(self) -> None:
        if self.group_size < 16 or self.group_size & (self.group_size - 1):
            raise UsageError(
                f"A group size of {self.group_size} is not offered.", "Choose 32, 64 or 128."
            )
        if self.awq and self.format not in (WeightFormat.INT4, WeightFormat.INT4_ASYM):
            raise UsageError("AWQ is for INT4 only.", "Choose int4 or int4-asym, or leave it off.")

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """From what `str` makes of one. Raises UsageError."""
        words = text.split()
        is_awq = words[-1:] == ["awq"]
        match words[:-1] if is_awq else words:
            case [form, "group", size] if size.isdecimal():
                return cls(_format(form), int(size), is_awq)
            case [form] if not is_awq:
                return cls(_format(form))
            case _:
                raise UsageError(f"{text[:60]!r} is no form of weights.", _FORMATS)

    def __str__(self) -> str:
        if self.format not in (WeightFormat.INT4, WeightFormat.INT4_ASYM):
            return str(self.format)
        return f"{self.format} group {self.group_size}{' awq' if self.awq else ''}"
