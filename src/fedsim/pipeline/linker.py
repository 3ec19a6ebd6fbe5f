"""Who finds the partners of the primary's records at one secondary, and who sees what for it.

``LocalLinker`` compares identifiers of both tables in this process, ``FilterLinker`` compares their filters here as the
coordinator of a job would. With ``CoordinatorLinker`` in the runtime, filters go to the coordinator, and pseudonyms and
noisy similarities come back. All pass the same contract tests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import polars as pl

from fedsim import registry
from fedsim.errors import FileError, SettingError
from fedsim.linkage import Metric, WeightedField, WeightedSum, fit_scale, get_metric, link, similarities
from fedsim.linkage.private_linkage import (
    LinkageConfig,
    LinkageState,
    link_encoded_tables,
    link_new_records,
)
from fedsim.privacy.bounds import sigma_for_bound
from fedsim.types import EncodedTable, Floats, Integers, LinkageResult, Links, Scale
from fedsim.validation import validate_k

RecordsT_contra = TypeVar("RecordsT_contra", contravariant=True)
QueriesT = TypeVar("QueriesT")


class Linker(Protocol[RecordsT_contra, QueriesT]):
    """Finds the K most similar records of one secondary for every record of the primary.

    What it fits in :meth:`link`, such as the scale of the similarities, holds for new records, also after a restart.
    Equal records get equal links whenever they are linked.
    """

    def link(self, records: RecordsT_contra, training: Integers) -> Links:
        """Link the records of a table; scale and noise are fitted to its ``training`` rows."""
        ...

    def encode_new(self, records: RecordsT_contra) -> QueriesT:
        """Return new records as they are linked; nothing is sent, and an invalid cell is an error."""
        ...

    def link_new(self, queries: QueriesT) -> Links:
        """Link new records."""
        ...


def not_linked(secondary: str) -> SettingError:
    """Return the error for new records whose linker knows no training records."""
    message = f"new records cannot be linked to '{secondary}' before those of training; link these first"
    return SettingError(message, code="not-linked", secondary=secondary)


def unreadable_links(secondary: str, error: Exception) -> FileError:
    """Return the error for a saved linker that lacks something."""
    message = f"the links to {secondary} cannot be read ({type(error).__name__}); save the model again"
    return FileError(message, code="damaged-model")


@dataclass(eq=False)
class LocalLinker:
    """Links the identifiers of both tables in this process, exactly; noise, if any, belongs to a record.

    Parameters
    ----------
    secondary, candidates
        Name and identifiers of the secondary, with the column names of the primary.
    metric, k
        As in :func:`fedsim.linkage.link`.
    seed
        Of the noise.
    sigma, tau
        The standard deviation of the noise, or the bound that :meth:`link` computes it from.
    equal_only
        Whether partners whose identifiers are not equal count as none, row -1.
    scale
        The scale of the training links; fitted by :meth:`link`.
    """

    secondary: str
    candidates: pl.DataFrame
    metric: Metric
    k: int
    seed: int
    sigma: float = 0.0
    tau: float | None = None
    equal_only: bool = False
    scale: Scale | None = None

    def link(self, records: pl.DataFrame, training: Integers) -> Links:
        return self.as_links(self.search(records, training))

    def encode_new(self, records: pl.DataFrame) -> pl.DataFrame:
        return records

    def link_new(self, queries: pl.DataFrame) -> Links:
        return self.as_links(self.search(queries))

    def search(self, records: pl.DataFrame, training: Integers | None = None) -> LinkageResult:
        """Return partners, distances and similarities; ``training`` rows fit the scale, else it must be known."""
        k = validate_k(self.k, len(self.candidates), self.secondary)
        options: dict[str, Any] = {"primary_name": "primary", "secondary_name": self.secondary}
        found = link(records, self.candidates, metric=self.metric, k=k, **options)
        if training is not None:
            self.scale = fit_scale(found.distance[training])
            self.sigma = self.sigma if self.tau is None else sigma_for_bound(self.tau, self.scale.deviation)
        if self.scale is None:
            raise not_linked(self.secondary)
        noise = record_noise(records, k, self.seed) if self.sigma else None
        similarity = similarities(found.distance, self.scale, sigma=self.sigma, noise=noise)
        return replace(found, similarity=similarity, scale=self.scale, sigma=self.sigma)

    def as_links(self, found: LinkageResult) -> Links:
        """Return what a network takes of the result of a search."""
        partner = np.where(found.distance == 0, found.partner, -1) if self.equal_only else found.partner
        return Links(partner, found.similarity)

    def state(self) -> dict[str, Any]:
        """Return what linking new records needs beside the table, as JSON values."""
        if self.scale is None:
            raise not_linked(self.secondary)
        scale = [self.scale.mean, self.scale.deviation]
        return {"metric": metric_state(self.metric), "k": self.k, "sigma": self.sigma, "scale": scale}

    @classmethod
    def restore(cls, secondary: str, candidates: pl.DataFrame, state: Mapping[str, Any], **options: Any) -> LocalLinker:
        """Return the linker that :meth:`state` described; ``options`` are those of this process."""
        try:
            metric, scale = metric_from_state(state["metric"]), Scale(*state["scale"])
            return cls(secondary, candidates, metric, state["k"], sigma=state["sigma"], scale=scale, **options)
        except (LookupError, TypeError) as error:
            raise unreadable_links(secondary, error) from error


def record_noise(identifiers: pl.DataFrame, k: int, seed: int) -> Floats:
    """Return standard normal noise, one row per record and one column per partner.

    Equal identifiers get equal noise, in training and at prediction, so that repeated requests do not average it out.

    >>> drawn = record_noise(pl.DataFrame({"lat": [1, 2, 1]}), k=2, seed=0)
    >>> bool((drawn[0] == drawn[2]).all()), bool((drawn[0] == drawn[1]).any())
    (True, False)
    """
    # Numbers as floats: pandas converts whole numbers as soon as one is missing; -0.0 becomes 0.0.
    normalised = identifiers.with_columns(pl.selectors.numeric().cast(pl.Float64) + 0.0)
    rows = [json.dumps(row, default=str) for row in normalised.rows()]
    noise = {}
    for row in set(rows):
        digest = hashlib.sha256(f"{seed} {row}".encode()).digest()
        noise[row] = np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(k)
    return np.stack([noise[row] for row in rows])


def metric_state(metric: Metric) -> Any:
    """Return the name of a metric, or the fields of a weighted sum.

    >>> metric_state(get_metric("days"))
    'days'
    """
    if isinstance(metric, WeightedSum):
        return [[field.column, metric_state(field.measure), field.weight] for field in metric.fields]
    if metric.name in registry.METRICS and registry.METRICS[metric.name] == metric:
        return metric.name
    raise SettingError(f"metric '{metric.name}' is not one of FedSim's own; a model with it cannot be saved")


def metric_from_state(state: Any) -> Metric:
    """Return the metric that :func:`metric_state` described."""
    if isinstance(state, str):
        return get_metric(state)
    return WeightedSum(tuple(WeightedField(column, get_metric(name), weight) for column, name, weight in state))


@dataclass(eq=False)
class FilterLinker:
    """Links filters of both tables in this process by the terms of a job; partners are rows, not pseudonyms.

    Parameters
    ----------
    secondary, candidates
        Name and encoded identifiers of the secondary.
    terms, secret
        The terms of the job, and the secret that a coordinator would draw pseudonyms and noise from.
    fitted
        What :meth:`link` fitted to the training records.
    """

    secondary: str
    candidates: EncodedTable
    terms: LinkageConfig
    secret: bytes
    fitted: LinkageState | None = None

    def link(self, records: EncodedTable, training: Integers) -> Links:
        counted = np.isin(np.arange(len(records)), training)
        tables = records, self.candidates, counted
        self.fitted, links = link_encoded_tables(*tables, self.terms, self.secret, self.secondary)
        return Links(self.fitted.order[links.partner], links.similarity)

    def encode_new(self, records: EncodedTable) -> EncodedTable:
        return records

    def link_new(self, queries: EncodedTable) -> Links:
        if self.fitted is None:
            raise not_linked(self.secondary)
        links = link_new_records(queries, self.fitted, self.terms, self.secret, self.secondary)
        return Links(self.fitted.order[links.partner], links.similarity)
