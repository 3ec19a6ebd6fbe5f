"""The embedding that a secondary sends under sealed labels: one vector per row, not influenced by any label.

The secondary computes it once, with secret weights, from its own table alone. Letters: n records, E columns, C width.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.layers import Features, Perceptron
from fedsim.splitnn.party_model import CPU, AdamW, PartyModel, RandomSource
from fedsim.storage.tensor_file import scratch_array
from fedsim.types import AnyArray, Floats, Floats32

MAX_CATEGORIES = 32  # rarer categories of a column share one of its columns
EPOCHS, BATCH, HIDDEN_SHARE = 40, 256, 0.3
MIN_STEPS = 400
BLOCK_ROWS = 1 << 16  # in double precision at a time


def embed(features: Features, kind: str, width: int, source: RandomSource, folder: Path | None = None) -> Floats32:
    """Return one row per record, (n, C); every column has mean 0 and standard deviation 1, or is constant.

    Parameters
    ----------
    features
        The secondary's columns.
    kind
        ``features``: the columns themselves; ``random``: random features of them; ``autoencoder``: the middle layer of
        a network that reconstructs hidden columns.
    width
        C, except for ``features``, which keeps one column per number and category.
    source
        The secondary's secret random numbers.
    folder
        Folder for the file of a large embedding; by default the embedding stays in memory.
    """
    columns = passed_columns(features)
    if kind == "features":
        return columns
    if kind == "random":
        rows = scratch_array((len(columns), width), np.float32, folder)
        return _standardise(_random_features(columns, rows, source), rows)
    if kind == "autoencoder":
        rows = scratch_array((len(columns), width), np.float32, folder)
        return _standardise(_fill_hidden_columns(columns, rows, source), rows)
    raise SettingError(f"embedding '{kind}' is unknown; choose features, random or autoencoder", code="unknown-name")


def passed_columns(features: Features) -> Floats32:
    """Return the ranks of numbers and one column per category, standardised, (n, E).

    >>> passed_columns(Features(np.array([[5.0], [1.0], [900.0]]))).round(2).tolist()
    [[0.0], [-1.2200000286102295], [1.2200000286102295]]
    """
    parts = [_ranks(column)[:, None] for column in features.numbers.T]
    for codes, cardinality in zip(features.codes.T, features.cardinalities, strict=True):
        common = np.argsort(-np.bincount(codes, minlength=cardinality), kind="stable")[:MAX_CATEGORIES]
        parts.append(codes[:, None] == common)
    columns = np.hstack(parts)
    return _standardise(columns, np.empty(columns.shape, np.float32))


def _ranks(column: Floats32) -> AnyArray:
    """Return the rank of every value; equal values share the mean of their ranks."""
    _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _standardise(columns: AnyArray, out: Floats32) -> Floats32:
    """Standardise the columns into ``out``, which may be the same array, and return it."""
    mean = _column_means(columns, lambda rows: rows)
    deviation = np.sqrt(_column_means(columns, lambda rows: np.square(rows - mean)))
    for here in _blocks(columns):
        out[here] = (columns[here].astype(np.float64) - mean) / np.where(deviation > 0, deviation, 1.0)
    return out


def _column_means(columns: AnyArray, of: Callable[[Floats], Floats]) -> Floats:
    """Return the column means of a function of the rows, bit for bit equal to ``mean(axis=0)``."""
    total = np.zeros((0, columns.shape[1]))
    for here in _blocks(columns):
        total = np.vstack([total, of(columns[here].astype(np.float64))]).sum(axis=0, keepdims=True)
    return np.asarray(total[0] / len(columns))


def _blocks(columns: AnyArray) -> list[slice]:
    return [slice(first, first + BLOCK_ROWS) for first in range(0, len(columns), BLOCK_ROWS)]


def _random_features(columns: Floats32, out: Floats32, source: RandomSource) -> Floats32:
    """Write random projections to ``out``, half of them rectified at a random threshold, and return it."""
    rng, width = source.rng("embedding"), out.shape[1]
    directions = rng.normal(size=(columns.shape[1], width)) / np.sqrt(columns.shape[1])
    height = rng.normal(size=width - width // 2)
    for here in _blocks(columns):
        found = columns[here].astype(np.float64) @ directions
        found[:, width // 2 :] = np.maximum(found[:, width // 2 :] - height, 0.0)
        out[here] = found
    return out


class _ColumnFiller(nn.Module):
    """Columns with some hidden -> embedding -> all columns."""

    def __init__(self, n_columns: int, width: int) -> None:
        super().__init__()
        self.encoder = Perceptron([2 * n_columns, 2 * width, width])
        self.decoder = Perceptron([width, 2 * width, n_columns])

    def embed(self, columns: Tensor, shown: Tensor) -> Tensor:
        embedded: Tensor = self.encoder(torch.cat([columns * shown, shown], dim=1))
        return embedded

    def forward(self, columns: Tensor, shown: Tensor) -> Tensor:
        filled: Tensor = self.decoder(self.embed(columns, shown))
        return filled


def _fill_hidden_columns(columns: Floats32, out: Floats32, source: RandomSource) -> Floats32:
    """Train a network to fill in hidden columns, write its middle layer for complete rows to ``out``, and return it."""
    network, table = _ColumnFiller(columns.shape[1], out.shape[1]), torch.from_numpy(columns)
    batch = min(BATCH, len(table))
    total = max(MIN_STEPS, EPOCHS * len(table) // batch)
    model = PartyModel(network, AdamW(rate=2e-3, decay=1e-4), source, CPU)
    model.start(total)
    rng = source.rng("embedding rows")
    for step in range(total):
        model.begin(step)
        rows = torch.from_numpy(rng.integers(0, len(table), batch))
        shown = torch.from_numpy((rng.random((batch, columns.shape[1])) >= HIDDEN_SHARE).astype(np.float32))
        wanted = table.index_select(0, rows)
        (network(wanted, shown) - wanted).square().mean().backward()
        model.descend()
    with torch.no_grad():
        for here in _blocks(columns):
            out[here] = network.embed(table[here], torch.ones_like(table[here])).numpy()
    return out
