"""The oblivious function: equal values however they are computed, and nothing that a deviating holder gets through."""

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import SettingError, WireError
from fedsim.linkage.direct import oprf

INPUTS = [b"token %d" % number for number in range(5)]


@pytest.fixture(name="exchange")
def exchanged():
    key, blinds = oprf.SecretKey.generate(), oprf.random_blinds(len(INPUTS))
    blinded = oprf.blind(zip(INPUTS, blinds, strict=True))
    return key, blinds, blinded, key.evaluate_blinded(blinded)


def test_blinded_evaluation_gives_the_values_of_the_key(exchange):
    key, blinds, blinded, evaluation = exchange
    oprf.verify(key.public, blinded, evaluation)
    assert oprf.finalise(list(zip(INPUTS, blinds, evaluation.elements, strict=True))) == key.evaluate(INPUTS)
    assert key.evaluate(INPUTS) != oprf.SecretKey.generate().evaluate(INPUTS)


def test_equal_inputs_look_different_when_blinded():
    assert len(set(oprf.blind(zip([b"same"] * 4, oprf.random_blinds(4), strict=True)))) == 4


def test_one_token_that_was_evaluated_with_another_key_is_noticed(exchange):
    key, _, blinded, (elements, _) = exchange
    marked = oprf.SecretKey.generate().evaluate_blinded(blinded[:1]).elements
    honest = key.evaluate_blinded(blinded)
    with raises(WireError, "bad-proof"):
        oprf.verify(key.public, blinded, oprf.EvaluatedBatch(marked + elements[1:], honest.proof))
    with raises(WireError, "bad-proof"):
        oprf.verify(oprf.SecretKey.generate().public, blinded, honest)
    with raises(WireError, "bad-proof"):
        oprf.verify(key.public, blinded, oprf.EvaluatedBatch(elements[::-1], honest.proof))
    with raises(WireError, "bad-evaluation"):
        oprf.verify(key.public, blinded, oprf.EvaluatedBatch(elements[1:], honest.proof))


def test_changed_bytes_of_an_evaluation_raise_only_errors_of_the_protocol(exchange):
    key, _, blinded, (elements, proof) = exchange
    rng = np.random.default_rng(0)
    content = bytearray(b"".join(elements) + proof)
    for _ in range(300):
        changed = bytearray(content)
        changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        pieces = [bytes(changed[at : at + 32]) for at in range(0, len(changed), 32)]
        with pytest.raises(WireError):
            oprf.verify(key.public, blinded, oprf.EvaluatedBatch(pieces[:-2], b"".join(pieces[-2:])))


@pytest.mark.parametrize("element", [bytes(32), b"\xff" * 32, b"short", b""])
def test_what_is_no_element_is_not_evaluated(element):
    with raises(WireError, "not-an-element"):
        oprf.SecretKey.generate().evaluate_blinded([element])


@pytest.mark.parametrize("scalar", [b"", bytes(32), bytes(31)])
def test_wrong_keys_are_refused(scalar):
    with raises(SettingError, "bad-key"):
        oprf.SecretKey(scalar)


def test_a_key_never_shows_itself():
    key = oprf.SecretKey.generate()
    assert key.scalar.hex() not in repr(key)
    assert repr(key.scalar) not in repr(key)
