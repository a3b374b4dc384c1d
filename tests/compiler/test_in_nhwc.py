"""Values of a compiled program in NHWC: the forms, the pass, and what bfloat16 costs; on the CPU, by the reference."""

from __future__ import annotations

import pytest
from checks.nhwc import SHAPES, form_agrees

from minidl.ops.common.nhwc import FORMS, STORES


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_what_the_plain_primitive_gives(name: str, store: str) -> None:
    for at, shape in enumerate(SHAPES):
        form_agrees(name, shape, at, store)
