"""Turn a dataset into arrays for every split and seed: link it, scale the similarities, prepare the features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.contribution.job_ladder import identifier_features
from fedsim.contribution.linked_tables import exact_match_rows
from fedsim.contribution.rungs import LinkedSecondary, SplitArrays
from fedsim.data.features import fit_preprocessor
from fedsim.data.splits import group_matching_records, group_split, random_split
from fedsim.errors import SettingError
from fedsim.linkage import fit_scale, link, similarities
from fedsim.linkage.encoding import Key, NumericFilter, Schema, SchemaField, StringFilter
from fedsim.privacy.bounds import sigma_for_bound
from fedsim.types import Features, Integers, LinkageResult, Split
from fedsim_lab.datasets.dataset import Dataset, NumberFilterSettings, SecondaryTable, TextFilterSettings
from fedsim_lab.job_training import ONE_TO_ONE
from fedsim_lab.paper_filters import paper_numeric_filter, paper_string_filter
from fedsim_lab.rank_filters import schema_ranks

# Identifiers as they are compared: in the clear, or as the filters with which the paper hid them


HAMMING = "hamming"
FIXED_KEY = Key(bytes(range(32)))  # the choice of key does not affect any measurement


def identifier_tables(dataset: Dataset, secondary: SecondaryTable) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the identifiers of both parties, under the primary's column names."""
    how = secondary.link
    named = dict(zip(how.secondary, how.primary, strict=True))
    ours = dataset.primary.frame.select(how.primary)
    theirs = secondary.table.frame.select(how.secondary).rename(named)
    if how.casefold:
        lower = pl.all().cast(pl.String).str.to_lowercase()
        return ours.select(lower), theirs.select(lower)
    return ours, theirs


def comparable_identifiers(
    ours: pl.DataFrame, theirs: pl.DataFrame, secondary: SecondaryTable, metric: str
) -> tuple[Any, Any, str]:
    """Return both sides and the metric's name; for ``hamming``, as the paper's filters, with numbers in rank form."""
    if metric != HAMMING:
        return ours, theirs, metric or secondary.link.metric
    filters = secondary.link.filters
    if isinstance(filters, NumberFilterSettings):
        schema = Schema([SchemaField(name, _number_filter(ours, theirs, name, filters)) for name in ours.columns])
        return schema_ranks(schema, ours, FIXED_KEY), schema_ranks(schema, theirs, FIXED_KEY), "rank-hamming"
    if isinstance(filters, TextFilterSettings):
        schema = Schema([SchemaField(name, _text_filter(ours[name], theirs[name], filters)) for name in ours.columns])
        return schema.encode(ours, FIXED_KEY), schema.encode(theirs, FIXED_KEY), HAMMING
    message = f"{secondary.name} has no filters in the paper; compare its identifiers in the clear"
    raise SettingError(message, code="no-filters")


def _number_filter(ours: pl.DataFrame, theirs: pl.DataFrame, name: str, filters: NumberFilterSettings) -> NumericFilter:
    both = np.concatenate([ours[name].to_numpy(), theirs[name].to_numpy()])
    low, high = float(both.min()), float(both.max())
    return paper_numeric_filter(low, high, filters.threshold, epsilon=filters.epsilon, delta=filters.delta)


def _text_filter(ours: pl.Series, theirs: pl.Series, filters: TextFilterSettings) -> StringFilter:
    encoding = StringFilter(q=filters.q, hashes=filters.hashes)
    grams = [len(encoding.grams(encoding.normal_form(text))) for text in pl.concat([ours, theirs])]
    return paper_string_filter(
        edit_distance=filters.edits,
        hashes=filters.hashes,
        collision=filters.collisions,
        delta=filters.delta,
        mean_grams=float(np.mean(grams)),
        q=filters.q,
    )


# A dataset as arrays for every split and seed: linked once, scaled and prepared by each split's training records


NOISE_SEED = 77
FIXED = "fixed"  # the paper's way: one random split for all seeds, which differ in weights, order and dropout
FIXED_SPLIT_SEED = 0


@dataclass(frozen=True)
class LinkageOverrides:
    """Overrides of how the dataset is linked; ``tau`` or ``sigma`` add noise to similarities.

    As in the paper, every link of every record has its own noise, so that records with equal identifiers get different
    lists. In a job they share their noise: see ``partner="same-noise"`` of :class:`fedsim.contribution.rungs.Rung`.
    """

    k: int | None = None
    metric: str = ""
    tau: float | None = None
    sigma: float = 0.0


@dataclass(frozen=True, eq=False)
class DatasetCases:
    """The splits of a dataset; ``secondaries`` names those that take part, by default the first.

    With ``one_to_one``, only the first has lists of its own: each of its rows is linked to the nearest row of every
    other secondary (paper, appendix "Extension to Multiple Parties").
    """

    dataset: Dataset
    linkage: LinkageOverrides = field(default_factory=LinkageOverrides)
    secondaries: Sequence[str] = ()
    one_to_one: bool = False

    def each(self, splits: Sequence[str], seeds: Sequence[int]) -> Iterator[SplitArrays]:
        """Yield the arrays of every split and seed."""
        for kind in splits:
            for seed in seeds:
                yield self.one(kind, seed)

    def one(self, kind: str, seed: int) -> SplitArrays:
        """Return the arrays of one split."""
        if kind == FIXED:
            arrays = self._fixed
            return replace(arrays, about={**arrays.about, "seed": seed})
        rng = np.random.default_rng(seed)
        split = group_split(self.groups, rng) if kind == "group" else random_split(len(self.groups), rng)
        data = self.dataset
        return SplitArrays(
            primary=_prepare_table(data.primary.frame.select(data.primary.features), "primary", split.train),
            own=identifier_features(self._identifiers, split.train),
            secondaries=self._linked_secondaries(split),
            labels=_encode_labels(data),
            groups=self.groups,
            split=split,
            about=self._words() | {"split": kind, "seed": seed},
        )

    def with_tau(self, tau: float) -> DatasetCases:
        """Return the same cases with the noise of another tau; what was linked is not linked again."""
        other = replace(self, linkage=replace(self.linkage, tau=tau))
        other.__dict__.update(links=self.links, groups=self.groups)
        return other

    def _words(self) -> dict[str, Any]:
        """Return facts about the dataset; for a generated one also the true contribution of these secondaries."""
        about, truth = self.dataset.about, self.dataset.truth
        words = {"name": about.name, "unit": about.unit, "label": self.dataset.label, "task": str(about.task)}
        known = (
            {} if truth is None else {"truth": truth.contribution(*(secondary.name for secondary in self.taking_part))}
        )
        return words | known | ({ONE_TO_ONE: True} if self.one_to_one else {})

    @cached_property
    def _fixed(self) -> SplitArrays:
        arrays = self.one("random", FIXED_SPLIT_SEED)
        return replace(arrays, about={**arrays.about, "split": FIXED})

    @cached_property
    def taking_part(self) -> tuple[SecondaryTable, ...]:
        """The secondaries of these cases."""
        names = self.secondaries or [self.dataset.secondaries[0].name]
        return tuple(self.dataset.secondary(name) for name in names)

    @cached_property
    def groups(self) -> Integers:
        """A group number per record; records whose identifiers all compare as equal share a group."""
        compared = [identifier_tables(self.dataset, secondary)[0] for secondary in self.taking_part]
        return group_matching_records([self._identifiers], compared)

    @cached_property
    def links(self) -> dict[str, LinkageResult]:
        """The links of every secondary, before they are scaled by a split's training records."""
        return {secondary.name: self._found(secondary) for secondary in self.taking_part}

    def _linked_secondaries(self, split: Split) -> tuple[LinkedSecondary, ...]:
        if not self.one_to_one:
            return tuple(self.linked(secondary, split) for secondary in self.taking_part)
        first = self.linked(self.taking_part[0], split)
        used = np.unique(first.partner[first.list_of[split.train]])
        aligned = []
        for secondary in self.taking_part[1:]:
            frame, match = secondary.table.frame.select(secondary.table.features), self._matches[secondary.name]
            features = _prepare_table(frame, secondary.name, np.unique(match[used])).take(match)
            aligned.append(replace(first, features=features, name=secondary.name))
        return (first, *aligned)

    @cached_property
    def _matches(self) -> dict[str, Integers]:
        """For each secondary but the first, the row that is nearest to every row of the first."""
        first = identifier_tables(self.dataset, self.taking_part[0])[1]
        return {
            secondary.name: link(
                first, identifier_tables(self.dataset, secondary)[1], metric=secondary.link.metric, k=1
            ).partner[:, 0]
            for secondary in self.taking_part[1:]
        }

    @cached_property
    def _identifiers(self) -> pl.DataFrame:
        named = [column for secondary in self.taking_part for column in secondary.link.primary]
        return self.dataset.primary.frame.select(list(dict.fromkeys(named)))

    def _found(self, secondary: SecondaryTable) -> LinkageResult:
        """Return the links of distinct identifiers; ``linked`` maps them to the records."""
        ours, theirs = identifier_tables(self.dataset, secondary)
        first = np.unique(self.groups, return_index=True)[1]
        k = min(self.linkage.k or secondary.link.k, len(theirs))
        left, right, metric = comparable_identifiers(ours[first], theirs, secondary, self.linkage.metric)
        return link(left, right, metric=metric, k=k)

    def linked(self, secondary: SecondaryTable, split: Split) -> LinkedSecondary:
        """Return a secondary with its lists of partners, scaled by the training records of a split."""
        found, (ours, theirs) = self.links[secondary.name], identifier_tables(self.dataset, secondary)
        first, list_of = np.unique(self.groups, return_index=True, return_inverse=True)[1:]
        scale = fit_scale(found.distance[list_of[split.train]])
        tau, sigma = self.linkage.tau, self.linkage.sigma
        sigma = sigma if tau is None else sigma_for_bound(tau, scale.deviation)
        used = np.unique(found.partner[list_of[split.train]])
        lists = np.arange(len(first)) if sigma == 0 else list_of  # with noise, every record has a list of its own
        noise = np.random.default_rng(NOISE_SEED)
        return LinkedSecondary(
            features=_prepare_table(secondary.table.frame.select(secondary.table.features), secondary.name, used),
            list_of=(list_of if sigma == 0 else np.arange(len(list_of))).astype(np.int32),
            partner=found.partner[lists].astype(np.int32),
            similarity=similarities(found.distance[lists], scale, sigma=sigma, noise=noise).astype(np.float32),
            equal=exact_match_rows(ours[first], theirs)[lists].astype(np.int32),
            name=secondary.name,
            match=secondary.match,
        )


def _prepare_table(frame: pl.DataFrame, party: str, rows: Integers) -> Features:
    return fit_preprocessor(frame, party=party, rows=rows).apply(frame)


def _encode_labels(data: Dataset) -> NDArray[Any]:
    """Return transformed numeric labels, or classes as numbers from zero."""
    labels = data.labels
    return np.unique(labels, return_inverse=True)[1] if data.about.task == "classification" else labels
