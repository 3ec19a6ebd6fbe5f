"""A dataset as arrays for every split and seed: linked once, scaled and prepared by each split's training records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.datasets import Dataset, Secondary
from fedsim.data.features import fit_preparation
from fedsim.data.splits import alike_records, group_split, random_split
from fedsim.experiment.arrays import Arrays, Linked
from fedsim.experiment.compared import compared, sides
from fedsim.experiment.equal_rows import equal_rows
from fedsim.experiment.own_identifiers import identifier_features
from fedsim.linkage import fit_scale, link, similarities
from fedsim.privacy.bounds import noise_for
from fedsim.splitnn.features import Features
from fedsim.types import Integers, Links, Split

NOISE_SEED = 77


@dataclass(frozen=True)
class Linkage:
    """What differs from how the dataset is linked; ``tau`` or ``sigma`` put noise on similarities."""

    k: int | None = None
    metric: str = ""
    tau: float | None = None
    sigma: float = 0.0


@dataclass(frozen=True, eq=False)
class Cases:
    """The splits of a dataset; ``secondaries`` names those that take part, the first where nothing is said."""

    dataset: Dataset
    linkage: Linkage = field(default_factory=Linkage)
    secondaries: Sequence[str] = ()

    def each(self, splits: Sequence[str], seeds: Sequence[int]) -> Iterator[Arrays]:
        """Arrays of every split and seed."""
        for kind in splits:
            for seed in seeds:
                yield self.one(kind, seed)

    def one(self, kind: str, seed: int) -> Arrays:
        """One split's arrays."""
        rng = np.random.default_rng(seed)
        split = group_split(self.groups, rng) if kind == "group" else random_split(len(self.groups), rng)
        data = self.dataset
        return Arrays(
            primary=_prepared(data.primary.frame.select(data.primary.features), "primary", split.train),
            own=identifier_features(self._identifiers, split.train),
            secondaries=tuple(self._linked(secondary, split) for secondary in self.taking_part),
            labels=_labels(data),
            groups=self.groups,
            split=split,
            about=self._words() | {"split": kind, "seed": seed},
        )

    def _words(self) -> dict[str, Any]:
        """What is known of the dataset; of a generated one also what these secondaries are truly worth."""
        about, truth = self.dataset.about, self.dataset.truth
        words = {"name": about.name, "unit": about.unit, "label": self.dataset.label, "task": str(about.task)}
        known = {} if truth is None else {"truth": truth.worth(*(secondary.name for secondary in self.taking_part))}
        return words | known

    @cached_property
    def taking_part(self) -> tuple[Secondary, ...]:
        """The secondaries of these cases."""
        names = self.secondaries or [self.dataset.secondaries[0].name]
        return tuple(self.dataset.secondary(name) for name in names)

    @cached_property
    def groups(self) -> Integers:
        """A number per record, the same where all identifiers are compared as equal."""
        compared = [sides(self.dataset, secondary)[0] for secondary in self.taking_part]
        return alike_records([self._identifiers], compared)

    @cached_property
    def links(self) -> dict[str, Links]:
        """The links of every secondary, before they are scaled by a split's training records."""
        return {secondary.name: self._found(secondary) for secondary in self.taking_part}

    @cached_property
    def _identifiers(self) -> pl.DataFrame:
        named = [column for secondary in self.taking_part for column in secondary.link.primary]
        return self.dataset.primary.frame.select(list(dict.fromkeys(named)))

    def _found(self, secondary: Secondary) -> Links:
        """Links of distinct identifiers; ``_linked`` spreads them over the records."""
        ours, theirs = sides(self.dataset, secondary)
        first = np.unique(self.groups, return_index=True)[1]
        k = min(self.linkage.k or secondary.link.k, len(theirs))
        left, right, metric = compared(ours[first], theirs, secondary, self.linkage.metric)
        return link(left, right, metric=metric, k=k)

    def _linked(self, secondary: Secondary, split: Split) -> Linked:
        found, (ours, theirs) = self.links[secondary.name], sides(self.dataset, secondary)
        first, list_of = np.unique(self.groups, return_index=True, return_inverse=True)[1:]
        scale = fit_scale(found.distance[list_of[split.train]])
        tau, sigma = self.linkage.tau, self.linkage.sigma
        sigma = sigma if tau is None else noise_for(tau, scale.deviation)
        rng = np.random.default_rng(NOISE_SEED)
        used = np.unique(found.partner[list_of[split.train]])
        return Linked(
            features=_prepared(secondary.table.frame.select(secondary.table.features), secondary.name, used),
            list_of=list_of.astype(np.int32),
            partner=found.partner.astype(np.int32),
            similarity=similarities(found.distance, scale, sigma=sigma, rng=rng).astype(np.float32),
            equal=equal_rows(ours[first], theirs).astype(np.int32),
            name=secondary.name,
        )


def save_cases(cases: Iterator[Arrays], folder: Path) -> None:
    """Write the arrays of every split and seed into a folder, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for arrays in cases:
        about = arrays.about
        arrays.save(folder / f"{about['name']}-{about['split']}-{about['seed']}.npz")


def _prepared(frame: pl.DataFrame, party: str, rows: Integers) -> Features:
    return Features.of(fit_preparation(frame, party=party, rows=rows).apply(frame))


def _labels(data: Dataset) -> NDArray[Any]:
    """Numbers as they are learnt, classes as numbers from zero."""
    labels = data.labels
    return np.unique(labels, return_inverse=True)[1] if data.about.task == "classification" else labels
