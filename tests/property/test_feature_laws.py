"""Prepared features are finite and bounded whatever arrives, and the training rows alone decide how."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, strategies as st

from fedsim.data.features import FeaturePreprocessor, fit_preprocessor

numbers = st.lists(st.none() | st.floats(-9e19, 9e19), min_size=1, max_size=20)
words = st.lists(st.none() | st.text(max_size=3), min_size=1, max_size=12)


@given(numbers, numbers)
def test_numbers_stay_finite_and_bounded(training, later):
    preparation = fit_preprocessor(pl.DataFrame({"x": pl.Series(training, dtype=pl.Float64)}), party="primary")
    prepared = preparation.apply(pl.DataFrame({"x": pl.Series(later, dtype=pl.Float64)})).numbers
    assert np.abs(prepared).max() <= 10.0
    assert np.isfinite(prepared).all()


@given(words, words)
def test_a_record_has_at_most_one_category(training, later):
    preparation = fit_preprocessor(pl.DataFrame({"w": pl.Series(training, dtype=pl.String)}), party="primary")
    prepared = preparation.apply(pl.DataFrame({"w": pl.Series(later, dtype=pl.String)})).numbers
    assert set(np.unique(prepared)) <= {0.0, 1.0}
    assert prepared.sum(axis=1).max(initial=0) <= 1


@given(numbers, words)
def test_a_stored_preparation_is_the_same(values, texts):
    size = min(len(values), len(texts))
    frame = pl.DataFrame({"x": values[:size], "w": texts[:size]}, schema={"x": pl.Float64, "w": pl.String})
    preparation = fit_preprocessor(frame, party="secondary 1")
    assert FeaturePreprocessor.from_json(preparation.to_json()) == preparation
