"""Numbers travel whole, at half precision or in one byte, and what is not finite does not arrive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from error_fixtures import raises
from fedsim.errors import SettingError
from fedsim.protocol import cut_layer
from fedsim.protocol.cut_layer import pack_tensor, wire_format
from fedsim.protocol.messages import Activations
from fedsim.protocol.transport import LAYOUTS, Envelope, decode, encode
from fedsim.registry import WIRE_FORMATS

VALUES = torch.linspace(-3, 3, 12).reshape(4, 3)
EXACT = torch.tensor([[127.0, 2.0, 0.0], [4.0, -254.0, -0.0]])  # in every form


def unpack_tensor(values, form):
    """What arrives if the number of rows is right and any width is."""
    return cut_layer.unpack_tensor(values, form, (len(values), None))


def sent(values, form):
    """What arrives of a tensor that went over the wire."""
    message = Activations(1, values=pack_tensor(values, wire_format(form)))
    return unpack_tensor(decode(encode(Envelope(message))).message.values, wire_format(form))


def test_whole_precision_arrives_bit_for_bit():
    assert torch.equal(sent(VALUES, "float32"), VALUES)


@pytest.mark.parametrize(("form", "digits"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_half_precision_rounds_and_no_more(form, digits):
    arrived = sent(VALUES, form)
    assert arrived.dtype == torch.float32
    assert ((arrived - VALUES).abs() <= digits * VALUES.abs()).all()


def one_byte_each(row):
    """What arrives of a row in one byte per number, value by value: the nearest multiple of the row's scale."""
    scale = float(torch.tensor(max(map(abs, row)) / 127).bfloat16())
    return [scale * float(np.float32(round(np.float32(value) / np.float32(scale)))) if scale else 0.0 for value in row]


@given(
    arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=st.floats(-9e5, 9e5, width=32)),
    st.integers(-30, 0),
)
def test_one_byte_per_number_is_the_nearest_multiple_of_a_scale_per_row(values, exponent):
    values = values * np.float32(2.0**exponent)
    arrived = sent(torch.from_numpy(values), "int8").numpy()
    np.testing.assert_allclose(arrived, [one_byte_each(row) for row in values.tolist()], rtol=1e-5, atol=1e-35)
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(arrived - values) <= largest * (0.5 / 127 * 1.01) + 1e-35).all()


@pytest.mark.parametrize("columns", [1, 2])
def test_a_row_that_has_a_scale_and_no_number_is_nothing(columns):
    assert unpack_tensor(np.ones((3, columns), np.int8), wire_format("int8")) is None


@pytest.mark.parametrize("form", WIRE_FORMATS.names())
def test_numbers_that_fit_arrive_as_they_are(form):
    assert torch.equal(sent(EXACT, form), EXACT)
    assert torch.equal(sent(EXACT.T, form), EXACT.T)
    assert sent(EXACT[:0], form).shape == (0, 3)


@pytest.mark.parametrize("form", WIRE_FORMATS.names())
def test_every_form_is_one_that_the_messages_know(form):
    assert wire_format(form).dtype in LAYOUTS["activations"].arrays["values"].dtypes
    assert wire_format(form).dtype in LAYOUTS["gradients"].arrays["values"].dtypes


@pytest.mark.parametrize("form", WIRE_FORMATS.names())
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_does_not_arrive(form, value):
    assert sent(torch.tensor([[1.0, value]]), form) is None


@pytest.mark.parametrize(("form", "most"), [("float32", 1e6), ("bfloat16", 9.9e5), ("int8", 9e5), ("float16", 65504.0)])
def test_large_numbers_arrive(form, most):
    assert sent(torch.tensor([[most, -most, most * 1e-30]]), form) is not None


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("value", [3e38, -1.01e6, float("nan"), float("-inf")])
def test_huge_numbers_do_not_arrive(form, value):
    assert sent(torch.tensor([[0.0, value]]), form) is None


def test_numbers_too_large_for_a_form_do_not_arrive_as_others():
    assert sent(torch.tensor([[1e5]]), "float16") is None


def test_numbers_of_another_form_are_nothing():
    for form in WIRE_FORMATS:
        other = pack_tensor(VALUES, wire_format("float32" if form == "float16" else "float16"))
        assert unpack_tensor(other, wire_format(form)) is None
    assert unpack_tensor(np.zeros((2, 2)), wire_format("float32")) is None


@pytest.mark.parametrize("form", WIRE_FORMATS.names())
@pytest.mark.parametrize(
    ("shape", "fits"), [((4, 3), True), ((4, None), True), ((3, 3), False), ((5, None), False), ((4, 2), False)]
)
def test_only_the_shape_that_is_due_arrives(form, shape, fits):
    arrived = cut_layer.unpack_tensor(pack_tensor(VALUES, wire_format(form)), wire_format(form), shape)
    assert (arrived is not None) == fits


def test_what_arrived_can_be_written_to_and_leaves_the_frame_alone():
    values = np.ones((2, 2), np.float32)
    values.flags.writeable = False
    unpack_tensor(values, wire_format("float32")).zero_()
    assert values.all()


def test_a_tensor_with_a_past_goes_without_it():
    assert pack_tensor(VALUES.clone().requires_grad_(), wire_format("float32")).tolist() == VALUES.tolist()


def test_an_unknown_form_is_refused_with_those_there_are():
    with raises(SettingError, "unknown-wire-format"):
        wire_format("float8")
