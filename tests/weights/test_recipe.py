from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.errors import UsageError
from meshinfer.weights.recipe import Recipe, WeightFormat

INT4 = (WeightFormat.INT4, WeightFormat.INT4_ASYM)


@given(st.sampled_from(INT4), st.sampled_from([16, 32, 64, 128, 256]), st.booleans())
def test_int4_there_and_back(form: WeightFormat, group: int, awq: bool) -> None:
    recipe = Recipe(form, group, awq)
    assert Recipe.parse(str(recipe)) == recipe


@pytest.mark.parametrize("form", [form for form in WeightFormat if form not in INT4])
def test_other_forms_there_and_back(form: WeightFormat) -> None:
    assert Recipe.parse(str(Recipe(form))) == Recipe(form)


@pytest.mark.parametrize(
    "text", ["", "int5", "int4 group", "int4 group x", "int4 group 128 gptq", "int8 awq", "int4 5"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Recipe.parse(text)
