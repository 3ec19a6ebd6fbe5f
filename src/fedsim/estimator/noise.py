"""Noise on similarities that belongs to a record, wherever it stands in a table and whatever stands beside it.

Equal identifiers get equal noise, in training as at prediction: asking again about a record averages nothing out.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import polars as pl

from fedsim.types import Floats


def noise_of(identifiers: pl.DataFrame, k: int, sigma: float, seed: int) -> Floats:
    """One row per record and one column per partner, drawn once for all records with equal identifiers.

    >>> drawn = noise_of(pl.DataFrame({"lat": [1, 2, 1]}), k=2, sigma=0.5, seed=0)
    >>> bool((drawn[0] == drawn[2]).all()), bool((drawn[0] == drawn[1]).any())
    (True, False)
    """
    if sigma == 0:
        return np.zeros((len(identifiers), k))
    written = [json.dumps(row, default=str) for row in _alike(identifiers).rows()]
    drawn = {text: _generator(seed, text).normal(0.0, sigma, size=k) for text in set(written)}
    return np.stack([drawn[text] for text in written])


def _alike(identifiers: pl.DataFrame) -> pl.DataFrame:
    """Numbers as floats: pandas makes floats of whole numbers as soon as one is missing; -0.0 is 0.0."""
    return identifiers.with_columns(pl.selectors.numeric().cast(pl.Float64) + 0.0)


def _generator(seed: int, text: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed} {text}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
