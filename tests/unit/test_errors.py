"""An error is one harmless line for people, and a code with attributes for programs."""

from __future__ import annotations

import pickle

import pytest

from fedsim.errors import FedSimError, InputError, nearest_word, replace_unprintable


def test_an_error_has_the_values_behind_its_message_as_attributes() -> None:
    error = FedSimError("k=50, but there are 12 records", code="k-too-large", limit=12)
    assert (error.code, error.limit) == ("k-too-large", 12)
    assert not hasattr(error, "row")


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "\u202eabc", "\x9b31m", "\u2028"])
def test_a_message_is_one_line_that_controls_nothing(text: str) -> None:
    shown = str(InputError(f"column '{text}'"))
    assert shown.isprintable()
    assert len(shown) == len(f"column '{text}'")


def test_line_feeds_stay_where_lines_are_wanted_and_nothing_else_does() -> None:
    assert replace_unprintable("one\ntwo\r\x1b", lines=True) == "one\ntwo ?"


def test_an_error_that_is_copied_without_its_values_does_not_recurse() -> None:
    blank = FedSimError.__new__(FedSimError)
    with pytest.raises(AttributeError):
        _ = blank.limit
    assert str(pickle.loads(pickle.dumps(FedSimError("one line")))) == "one line"  # noqa: S301 - our own bytes


def test_the_nearest_word_is_similar_enough_or_none() -> None:
    assert nearest_word("euclidian", ["euclidean", "days"]) == "euclidean"
    assert nearest_word(7, ["euclidean", "days"]) == ""
