"""A setting is returned as a plain Python value, or refused with its name, its value and a code."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import SettingError
from fedsim.validation import (
    convert_scalars,
    validate_filter_bits,
    validate_flag,
    validate_integer,
    validate_k,
    validate_number,
    validate_positive,
)

REFUSED = [
    (lambda: validate_integer(1.0, "epochs"), "invalid-type"),
    (lambda: validate_integer(True, "epochs"), "invalid-type"),
    (lambda: validate_integer(0, "epochs", least=1), "out-of-range"),
    (lambda: validate_integer(9, "epochs", most=8), "out-of-range"),
    (lambda: validate_number("1", "sigma"), "invalid-type"),
    (lambda: validate_number(True, "sigma"), "invalid-type"),
    (lambda: validate_number(float("nan"), "sigma"), "out-of-range"),
    (lambda: validate_number(10**400, "sigma"), "out-of-range"),
    (lambda: validate_number(np.float32("inf"), "sigma"), "out-of-range"),
    (lambda: validate_number(0, "sigma", above=0), "out-of-range"),
    (lambda: validate_number(1, "sigma", below=1), "out-of-range"),
    (lambda: validate_positive(spread=0.0), "out-of-range"),
    (lambda: validate_flag(1, "padded"), "invalid-type"),
    (lambda: validate_filter_bits(12), "out-of-range"),
    (lambda: validate_k(0, 12, "the partner"), "out-of-range"),
    (lambda: validate_k(13, 12, "the partner"), "k-too-large"),
]


@pytest.mark.parametrize(("validate", "code"), REFUSED)
def test_a_setting_outside_its_limits_is_refused_with_name_and_code(validate, code):
    with pytest.raises(SettingError) as caught:
        validate()
    assert caught.value.code == code
    assert str(caught.value).startswith(f"{caught.value.name}=")


def test_numbers_of_numpy_become_python_numbers():
    assert type(validate_integer(np.int8(3), "k", least=1, most=3)) is int
    assert type(validate_number(np.float32(0.5), "share", least=0.5, most=0.5)) is float


def test_an_object_is_named_by_its_type_only():
    with pytest.raises(SettingError, match="<list>"):
        validate_number(["canary"], "sigma")


def test_numpy_settings_of_a_dataclass_become_plain():
    from dataclasses import make_dataclass  # noqa: PLC0415

    settings = make_dataclass("Settings", ["k", "weights"])(np.int64(3), (np.float32(0.5), 1))
    convert_scalars(settings)
    assert [type(value) for value in (settings.k, *settings.weights)] == [int, float, int]
