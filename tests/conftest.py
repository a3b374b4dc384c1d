"""What every test shares: minidl's randomness starts anew from one seed."""

import pytest

import minidl


@pytest.fixture(autouse=True)
def seeded() -> None:
    minidl.manual_seed(0)
