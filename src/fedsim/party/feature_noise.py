"""Noise on a secondary's own features, drawn once from its secret and the same after every restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.linkage.secret_file import own_secret
from fedsim.party.protecting import SECRET, frame_digest
from fedsim.party.protection import FeatureTerms, Protection
from fedsim.privacy.keyed import BLOCK_KEY_BYTES, WORD, Words, random_words, subkey
from fedsim.privacy.mechanisms import NoisyFeatures
from fedsim.privacy.pair_noise import normal
from fedsim.splitnn.features import Features
from fedsim.types import Floats


def guarded_features(features: Features, frame: pl.DataFrame, protection: Protection, folder: Path) -> Features:
    """Features under the noise that a job wants, from the secret in this folder."""
    terms = protection.features
    if terms is None:
        return features
    return noisy_features(features, terms, own_secret(folder / SECRET), table=frame_digest(frame))


def noisy_features(features: Features, terms: FeatureTerms, secret: bytes, *, table: str) -> Features:
    """Features as this party's network may see them; ``table`` stands for the cells they were made from.

    Another table, or other noise, draws anew: two scales of one draw would reveal it.
    """
    mechanism, (n_numbers, n_codes) = NoisyFeatures(terms.noise), features.columns
    key = subkey(secret, f"features with noise {terms.noise!r} of {table}", BLOCK_KEY_BYTES)
    words = random_words(key, _blocks(len(features), n_numbers + 2 * n_codes))
    numbers = mechanism.laid_on(features.numbers, normal(words[:, :n_numbers]))
    coins: Floats = np.asarray((words[:, n_numbers:] >> np.uint64(11)) * 2.0**-53, dtype=np.float64)
    codes = mechanism.replaced(features.codes, features.cardinalities, coins.reshape(len(features), n_codes, 2))
    return replace(features, numbers=numbers.astype(np.float32), codes=codes, spread=features.many_valued)


def _blocks(n_rows: int, n_columns: int) -> Words:
    """A block of two words for every cell: its row and its column."""
    blocks = np.empty((n_rows, n_columns, 2), WORD)
    blocks[..., 0] = np.arange(n_rows, dtype=np.uint64)[:, None]
    blocks[..., 1] = np.arange(n_columns, dtype=np.uint64)
    return blocks
