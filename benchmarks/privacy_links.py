"""The paper's hdb and house as a primary sees them: K links of every record, under noise or blurred places.

Filters are sized by the paper's rule and stored in rank form, as two integers each. The paper's threshold for hdb, 0.01
degrees, makes all schools beyond 2 km look alike, which would flatter the noise, so 0.1 is used there. The tables are
read from ``FEDSIM_DATA`` (default ``data``); the primary's records are sampled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.data.features import FeatureRules, fit_preprocessor
from fedsim.data.splits import random_split
from fedsim.hyperparameters import TrainingSettings
from fedsim.linkage import fit_scale, topk
from fedsim.linkage.encoding import NumericFilter
from fedsim.linkage.search.runner import distinct_records
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim.training import Config, PrimaryData, SecondaryData, train
from fedsim.training.config import build_config, modern_preset
from fedsim.types import Features, Floats, Integers, Split
from fedsim_audit.attacks.similarity_attacks import Codebook, PrimaryView
from fedsim_lab.datasets.dataset import NumberFilterSettings
from fedsim_lab.datasets.dataset_registry import load_dataset
from fedsim_lab.paper_filters import paper_numeric_filter
from fedsim_lab.rank_filters import RankHamming

DATA = Path(os.environ.get("FEDSIM_DATA", Path(__file__).parents[1] / "data"))
NAMES = ("hdb", "house")
PLACE = ["lat", "lon"]
THRESHOLDS = {"hdb": 0.1, "house": 0.01}
K, MARGIN = 50, 0.2  # and the degrees by which the agreed range exceeds the places
BATCH = 128  # smaller than the preset's: otherwise a sample would have few steps
SUBKEYS = (bytes([1]) * 32, bytes([2]) * 32)


@dataclass(frozen=True, eq=False)
class RankPlaceEncoder:
    """FEDERAL filters of latitude and longitude in rank form; the pivots are drawn and sorted once."""

    pivots: tuple[Floats, Floats]
    low: Floats
    high: Floats
    threshold: Floats
    metric: RankHamming = field(default_factory=RankHamming)

    @classmethod
    def of(cls, filters: tuple[NumericFilter, NumericFilter], subkeys: tuple[bytes, bytes]) -> RankPlaceEncoder:
        first, second = (np.sort(code.pivots(key)) for code, key in zip(filters, subkeys, strict=True))
        low, high, threshold = np.array([[code.low, code.high, code.threshold] for code in filters]).T
        return cls((first, second), low, high, threshold)

    def encode(self, places: Floats) -> Integers:
        inside = np.clip(places, self.low, self.high)
        columns = []
        for axis, pivots in enumerate(self.pivots):
            columns.append(np.searchsorted(pivots, inside[:, axis] - self.threshold[axis], side="left"))
            columns.append(np.searchsorted(pivots, inside[:, axis] + self.threshold[axis], side="right"))
        return np.ascontiguousarray(np.column_stack(columns).astype(np.int32))


@dataclass(frozen=True, eq=False)
class Case:
    """Both tables, ready to link and to train; ``size`` holds the paper's filter settings."""

    primary: PrimaryData
    partners: Features
    places: tuple[Floats, Floats]
    size: NumberFilterSettings
    split: Split


@dataclass(frozen=True, eq=False)
class Linked:
    """The links of a case without noise, and what an attacker's codebook holds."""

    case: Case
    own: Floats
    partner: Integers
    distance: Floats
    codes: Codebook
    encoder: RankPlaceEncoder

    def seen(self, sigma: float, draw: int = 0) -> PrimaryView:
        """Return what the primary sees with this noise: one draw per pair of filters, as the coordinator adds it."""
        train = self.case.split.train
        scale = fit_scale(self.distance[train])
        similarity = (-self.distance - scale.mean) / scale.deviation
        left = distinct_records(self.codes.own)[1]
        pair, link = np.unique(left[:, None] * len(self.codes) + self.codes.truth[self.partner], return_inverse=True)
        noise = np.random.default_rng(3 + draw).normal(0.0, sigma, len(pair))[link] if sigma else 0.0
        return PrimaryView(self.partner, similarity + noise, scale, sigma)


def read_case(name: str, records: int) -> Case:
    """Return a sample of the primary's records and all of the partner's."""
    found = load_dataset(name, DATA)
    flats = found.primary.frame
    rows = np.sort(np.random.default_rng(0).choice(len(flats), min(records, len(flats)), replace=False))
    flats, partner = flats[rows], found.secondaries[0]
    split = random_split(len(flats), np.random.default_rng(1))
    size = partner.link.filters
    if not isinstance(size, NumberFilterSettings):
        raise TypeError(f"{name} has no filters of numbers")
    labels = flats[found.label].to_numpy().astype(np.float64)
    primary = PrimaryData(_features(flats.select(found.primary.features), split.train), labels)
    partners = _features(partner.table.frame.select(partner.table.features), None)
    places = flats.select(PLACE).to_numpy(), partner.table.frame.select(PLACE).to_numpy()
    return Case(primary, partners, places, replace(size, threshold=THRESHOLDS[name]), split)


def linked(case: Case, epsilon_per_km: float | None = None) -> Linked:
    """Return the K nearest partners by the paper's filters; if an epsilon is given, both sides' places are blurred."""
    own, partners = (_blurred(places, epsilon_per_km, seed) for seed, places in enumerate(case.places))
    encoder = _encoder(case)
    codes = Codebook.of(RankHamming(), encoder.encode(own), encoder.encode(partners))
    partner, distance = topk(
        encoder.encode(own), encoder.encode(partners), metric=RankHamming(), k=min(K, len(partners)), threads=1
    )
    return Linked(case, own, partner, distance.astype(np.float64), codes, encoder)


def rmse(case: Case, view: PrimaryView | None, epochs: int) -> float:
    """Return the test error of a short training on what the primary sees; without a view, it learns alone."""
    config = modern_preset(epochs=epochs, batch=BATCH) if view is not None else _alone(epochs)
    lists = [] if view is None else [SecondaryData(case.partners, view.partner, view.similarity)]
    return train(case.primary, lists, case.split, config).metrics["test"]["rmse"]


def _encoder(case: Case) -> RankPlaceEncoder:
    both = np.vstack(case.places)
    low, high = both.min(axis=0) - MARGIN, both.max(axis=0) + MARGIN
    size = case.size
    first, second = (
        paper_numeric_filter(*ends, size.threshold, epsilon=size.epsilon, delta=size.delta)
        for ends in zip(low.tolist(), high.tolist(), strict=True)
    )
    return RankPlaceEncoder.of((first, second), SUBKEYS)


def _blurred(places: Floats, epsilon_per_km: float | None, seed: int) -> Floats:
    if epsilon_per_km is None:
        return places
    return PlanarLaplace(epsilon_per_km / 1000.0).apply(places, np.random.default_rng([4, seed]))


def _features(frame: pl.DataFrame, rows: Integers | None) -> Features:
    return fit_preprocessor(frame, party="bench", rows=rows, rules=FeatureRules()).apply(frame)


def _alone(epochs: int) -> Config:
    return build_config("solo", TrainingSettings(epochs=epochs, batch_size=BATCH), seed=0, device="cpu")
