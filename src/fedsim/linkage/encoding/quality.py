"""How well an encoding finds the partners that the plain identifiers have: recall, ties, saturation, fill.

Only where both tables may be seen can it be measured on both (``fedsim init`` with two tables, experiments); a party
alone measures it on its own table against itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl

from fedsim.linkage.encoding.positions import DatePosition, NumberPosition, PlacePosition
from fedsim.linkage.encoding.schema import Key, Schema, SchemaField
from fedsim.linkage.soft_linkage import topk
from fedsim.privacy.geodesy import EARTH_RADIUS, on_unit_sphere
from fedsim.types import EncodedTable, Floats, Integers

MAX_QUERIES, MAX_CANDIDATES = 1_000, 20_000  # the recall of such a sample is right to about one percent
REFERENCE_FACTOR = 8  # filters this many times longer stand for the plain identifiers


@dataclass(frozen=True)
class LinkageQuality:
    """Figures of an encoded linkage against the linkage of the plain identifiers.

    Parameters
    ----------
    k
        The number of partners per record.
    recall_at_1
        Share of records whose nearest candidate is found as the nearest.
    recall_at_k
        Share of the K nearest candidates that are found among the K nearest.
    ties
        Share of records for which a candidate as near as the last partner is left out.
    fill
        Mean share of ones in the filters; None for positions.
    kth_distance
        Median distance to the last partner, as the metric states it.
    """

    k: int
    recall_at_1: float
    recall_at_k: float
    ties: float
    fill: float | None
    kth_distance: float

    def describe(self) -> str:
        """Return the figures in one line.

        >>> LinkageQuality(20, 0.99, 0.981, 0.0, None, 250.0).describe()
        'finds 99 % of the nearest partners and 98 % of the nearest 20; ties 0 %'
        """
        found = f"finds {100 * self.recall_at_1:.0f} % of the nearest partners"
        found += f" and {100 * self.recall_at_k:.0f} % of the nearest {self.k}; ties {100 * self.ties:.0f} %"
        return found if self.fill is None else f"{found}; filters {100 * self.fill:.0f} % full"


def measure_linkage(
    schema: Schema, metric: str, primary: pl.DataFrame, secondary: pl.DataFrame, *, k: int, rng: np.random.Generator
) -> LinkageQuality:
    """Measure on two tables how much of the plain linkage an encoding keeps.

    Equal records count once, because which of them is listed first says nothing about the encoding.

    Parameters
    ----------
    schema, metric
        How the job encodes and compares identifiers.
    primary, secondary
        Tables with the columns of the schema and no missing cells; large ones are sampled. If both are one object, a
        table is measured against itself, and no record is its own partner.
    k
        Partners per record.
    rng
        Random generator of the sample.
    """
    itself = primary is secondary
    candidates = secondary.select(schema.columns).unique(maintain_order=True)
    candidates = candidates[np.sort(rng.permutation(len(candidates))[:MAX_CANDIDATES])]
    queries = candidates if itself else primary.select(schema.columns).unique(maintain_order=True)
    rows = np.sort(rng.permutation(len(queries))[:MAX_QUERIES])
    queries, own = queries[rows], rows if itself else None
    k = min(k, len(candidates) - itself)
    key = Key(rng.bytes(32))
    encoded = [schema.encode(table, key, rng) for table in (queries, candidates)]
    found, distance, left_out = _nearest(encoded, metric, k, own)
    if schema.metric == "position":
        plain, _, _ = _nearest(
            [_plain_positions(schema, table) for table in (queries, candidates)], "euclidean", k, own
        )
    else:
        longer = _with_longer_filters(schema)
        plain, _, _ = _nearest([longer.encode(table, key) for table in (queries, candidates)], metric, k, own)
    hits = (found[:, :, None] == plain[:, None, :]).any(axis=2)
    return LinkageQuality(
        k=k,
        recall_at_1=float((found[:, 0] == plain[:, 0]).mean()),
        recall_at_k=float(hits.mean()),
        ties=float((distance[:, -1] == left_out).mean()),
        fill=None if schema.metric == "position" else float(np.bitwise_count(encoded[1].bits).mean() / 8),
        kth_distance=float(np.median(distance[:, -1])),
    )


def _nearest(
    tables: Sequence[EncodedTable | Floats], metric: str, k: int, own: Integers | None
) -> tuple[Integers, Floats, Floats]:
    """Return the K nearest, their distances, and the distance of the first one left out; ``own`` rows do not count."""
    queries, candidates = tables
    wanted = min(k + 1 + (own is not None), len(candidates))
    partner, distance = topk(queries, candidates, metric=metric, k=wanted)
    if own is not None:  # equal records are one, so a record finds itself at distance zero
        others = partner != own[:, None]
        others[others.all(axis=1), -1] = False
        shape = len(partner), wanted - 1
        partner, distance = partner[others].reshape(shape), distance[others].reshape(shape)
    left_out = distance[:, k] if distance.shape[1] > k else np.full(len(distance), np.inf)
    return partner[:, :k], distance[:, :k], left_out


def _plain_positions(schema: Schema, table: pl.DataFrame) -> Floats:
    """Return the points that the positions stand for, in the same units and without rounding."""
    axes: list[Any] = []
    for field in schema.fields:
        values = table[field.column]
        if isinstance(field.encoding, PlacePosition):
            degrees = table.select(field.columns).to_numpy()
            axes.append(on_unit_sphere(np.radians(degrees)) * (EARTH_RADIUS / field.encoding.metres))
        elif isinstance(field.encoding, NumberPosition):
            axes.append(values.to_numpy()[:, None] / field.encoding.unit)
        elif isinstance(field.encoding, DatePosition):
            axes.append(values.to_physical().to_numpy()[:, None] / field.encoding.days)
    return np.hstack(axes)


def _with_longer_filters(schema: Schema) -> Schema:
    """Return the schema without hardening and with filters so long that hardly any two hashes meet."""
    longer = []
    for field in schema.fields:
        encoding: Any = field.encoding
        if any(setting.name == "bits" for setting in fields(encoding)):
            encoding = replace(encoding, bits=REFERENCE_FACTOR * encoding.bits)
        longer.append(SchemaField(field.column, encoding, field.salt))
    return Schema(longer)
