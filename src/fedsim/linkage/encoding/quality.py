"""How well an encoding finds the partners of the plain identifiers: recall, ties, fill, saturation and coverage.

Quality is measured between two tables (``fedsim init`` with both, experiments); without the other table, the primary
can only judge the links that it received.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl

from fedsim.linkage.encoding.column_encodings import IdentifierColumn
from fedsim.linkage.encoding.schema import Key, Schema, SchemaField
from fedsim.types import (
    SATURATION_WARNING_SHARE,
    TIE_WARNING_SHARE,
    EncodedTable,
    Flags,
    Floats,
    Integers,
)

MAX_QUERIES = 1_000  # the recall of such a sample is right to about one percent
MAX_FILTERS, MAX_POSITIONS = 30_000, 1_000_000  # candidates; more filters take long to encode
REFERENCE_FACTOR = 8  # filters this many times longer stand for the plain identifiers
# A text has a clear partner if that one is within reach and a tenth nearer than any other. The order among unrelated
# candidates does not matter: most IMDb titles have no partner in TMDb, and 1,024 and 8,192 bits agree on the nearest
# candidate for 75 % of all titles, but for 99 % of those with a clear partner.
CLEAR_SHARE = 0.9
# A text has a partner within reach if it is at most half as far as the tenth candidate, which is unrelated. This holds
# for 74 % of generated firms with a match and 7 % of those without. For places, reach is the distance within which this
# share of the secondary's places have their own K neighbours.
STRANGER_RANK, NEAR_SHARE = 10, 0.5
NEIGHBOUR_SHARE = 0.95
BEST_LINKED = 0.75  # quantile of the similarity to the last partner
MIN_RECALL, MIN_COVERED, MAX_FILL = 0.9, 0.5, 0.5
QUALITY_HEAD = ("", "value", "what to change")  # above the rows of such a table


class QualityRow(NamedTuple):
    """One row of a linkage quality table; ``fix`` states what to change if the value is bad."""

    name: str
    value: str
    fix: str = ""


@dataclass(frozen=True)
class LinkageQuality:
    """Figures that compare an encoded linkage with the linkage of the plain identifiers.

    Parameters
    ----------
    k
        The number of partners per record.
    recall_at_1
        Share of records whose true nearest candidate is found first. With text, only records with a clear partner
        count.
    recall_at_k
        Share of the true K nearest candidates that are found among the K nearest. With text, share of the clear
        partners.
    ties
        Share of records for which a candidate as near as the last partner is left out.
    kth_distance
        Median distance to the last partner, as the metric states it.
    clear
        Share of records with a clear partner; None without text.
    fill, saturated
        Mean share of ones in the filters, and share of records that share no ones with their last partner; None for
        positions.
    covered
        Share of records with a partner within reach; None where it was not measured.
    reach_metres
        If a single place is compared, the distance within which nearly all of the secondary's places have K others.
    """

    k: int
    recall_at_1: float
    recall_at_k: float
    ties: float
    kth_distance: float
    clear: float | None = None
    fill: float | None = None
    saturated: float | None = None
    covered: float | None = None
    reach_metres: float | None = None

    def rows(self) -> list[QualityRow]:
        """Return the figures as the table that every command and report shows.

        >>> LinkageQuality(20, 0.99, 0.981, 0.0, 250.0, covered=0.34, reach_metres=310.0).rows()[0].value
        '99 % of the nearest partners, 98 % of the nearest 20'
        """
        fill = self.fill or 0.0
        finer = "use a finer unit in the schema"
        if self.fill is not None:
            finer = "use fewer hashes or more bits" if fill > MAX_FILL else "use more bits"
        nearest = f"{_percent(self.recall_at_1)} of the nearest partners, {_percent(self.recall_at_k)} of the nearest"
        found, worst = f"{nearest} {self.k}", self.recall_at_k
        if self.clear is not None:
            found = (
                f"{_percent(self.recall_at_1)} of the clear partners first, {_percent(self.recall_at_k)} among {self.k}"
            )
            found, worst = f"{found}; {_percent(self.clear)} of the records have one", self.recall_at_1
        rows = [
            QualityRow("found", found, finer if worst < MIN_RECALL else ""),
            QualityRow(
                "ties",
                f"{_percent(self.ties)} of the lists end in a tie",
                f"{finer}, or a larger k" if self.ties > TIE_WARNING_SHARE else "",
            ),
        ]
        if self.fill is not None:
            saturated, fix = self.saturated or 0.0, finer if fill > MAX_FILL else ""
            if saturated > SATURATION_WARNING_SHARE:
                thresholds = "use larger thresholds, or positions instead of filters of numbers"
                fix = thresholds if self.clear is None else "use a smaller k: the last partners have nothing in common"
            value = f"{_percent(fill)} of the bits are ones; {_percent(saturated)} of the last partners share none"
            rows.append(QualityRow("filters", value, fix))
        if self.covered is not None:
            rows.append(QualityRow("coverage", *self._coverage(self.covered)))
        return rows

    def _coverage(self, covered: float) -> tuple[str, str]:
        """Return how many records have a partner within reach, and what to do if there are few."""
        if self.clear is not None:
            reach, fix = (
                "much closer than unrelated records",
                "the others gain little; add identifiers, or check the spelling",
            )
        else:
            reach = "within reach" if self.reach_metres is None else f"within {_metres(self.reach_metres)}"
            fix = "the others gain little; check that both tables cover the same area or range"
        return f"{_percent(covered)} of the records have a partner {reach}", fix if covered < MIN_COVERED else ""


@dataclass(frozen=True)
class ReceivedQuality:
    """What the primary alone can know about its links, from its own filters and the similarities it received.

    Parameters
    ----------
    fill
        Mean share of ones in its own filters; None for positions.
    tied
        Share of lists whose last two partners are equally similar; None with noise, which separates them.
    far
        Share of records that are farther from their nearest partner than the best-linked quarter of all records is from
        its last one; None with text, for which the match gate estimates which records have no match.
    unlinked
        Share of records that reached no row at all; None where every record has partners, as at a coordinator.
    opened, evaluated
        Without a coordinator, how many rows are partners of a record, and how many tokens the job had evaluated.
    """

    fill: float | None = None
    tied: float | None = None
    far: float | None = None
    unlinked: float | None = None
    opened: int | None = None
    evaluated: int | None = None

    @classmethod
    def of(cls, summary: object) -> Self:
        """Return the figures that something else has, too."""
        return cls(**{each.name: getattr(summary, each.name) for each in fields(cls)})

    def rows(self) -> list[QualityRow]:
        """Return the figures as a table, as :meth:`LinkageQuality.rows` does."""
        rows = []
        if self.fill is not None:
            fix = "use fewer hashes or more bits" if self.fill > MAX_FILL else ""
            rows.append(
                QualityRow("filters", f"{_percent(self.fill)} of the bits in the primary's own filters are ones", fix)
            )
        if self.tied is not None:
            fix = "use a larger k, or a finer encoding" if self.tied > TIE_WARNING_SHARE else ""
            rows.append(QualityRow("ties", f"{_percent(self.tied)} of the lists end with equal similarities", fix))
        if self.far is not None:
            close = "a partner about as close as those of the best-linked records"
            value = f"{_percent(1 - self.far)} of the records have {close}"
            fix = "the others gain little; check that both tables cover the same area or range"
            rows.append(QualityRow("coverage", value, fix if 1 - self.far < MIN_COVERED else ""))
        if self.unlinked is not None:
            fix = "the others have no partner; check that both tables are about the same things, or use wider tokens"
            value = f"{_percent(1 - self.unlinked)} of the records reach a row"
            rows.append(QualityRow("reached", value, fix if 1 - self.unlinked < MIN_COVERED else ""))
        if self.opened is not None:
            rows.append(QualityRow("opened", f"{self.opened:,} rows are partners; all others stay encrypted", ""))
        if self.evaluated is not None:
            rows.append(QualityRow("tokens", f"{self.evaluated:,} were evaluated for this job, padding included", ""))
        return rows


def judge_received_links(schema: Schema, encoded: EncodedTable, similarity: Floats, *, noisy: bool) -> ReceivedQuality:
    """Return what a primary can know about its links.

    Parameters
    ----------
    schema
        The schema of the job.
    encoded
        The primary's own encoded table.
    similarity
        The similarities that the primary received, most similar first, shape (records, K).
    noisy
        Whether the similarities have noise.
    """
    nearest, last = similarity[:, 0], similarity[:, -1]
    tied = None
    if not noisy and similarity.shape[1] > 1:
        tied = float((last == similarity[:, -2]).mean())
    return ReceivedQuality(
        fill=None if schema.positions else float(np.bitwise_count(encoded.bits).mean() / 8),
        tied=tied,
        far=None if schema.has_text else float((nearest < np.quantile(last, BEST_LINKED)).mean()),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _metres(metres: float) -> str:
    return f"{metres:,.0f} m" if metres < 1_000 else f"{metres / 1_000:,.1f} km"


def measure_linkage(
    schema: Schema, metric: str, primary: pl.DataFrame, secondary: pl.DataFrame, *, k: int, rng: np.random.Generator
) -> LinkageQuality:
    """Measure on two tables how much of the plain linkage an encoding preserves.

    Equal records count once, because the order among them says nothing about the encoding.

    Parameters
    ----------
    schema, metric
        How the job encodes and compares identifiers.
    primary, secondary
        Tables with the columns of the schema and no missing cells; large ones are sampled.
    k
        Partners per record.
    rng
        Random generator for the sample.
    """
    has_text = schema.has_text
    everyone = secondary.select(schema.columns).unique(maintain_order=True)
    most = MAX_POSITIONS if schema.positions else MAX_FILTERS
    candidates = everyone[np.sort(rng.permutation(len(everyone))[:most])]
    queries = primary.select(schema.columns).unique(maintain_order=True)
    queries = queries[np.sort(rng.permutation(len(queries))[:MAX_QUERIES])]
    k = min(k, len(candidates))
    key = Key(rng.bytes(32))
    encoded = [schema.encode(table, key) for table in (queries, candidates)]
    found, distance = _nearest(encoded, metric, k)
    plain, plain_distance = _nearest(_plain_tables(schema, (queries, candidates), key), metric, k)
    hits, clear = (found[:, :k, None] == plain[:, None, :k]).any(axis=1), None
    first, all_k = found[:, 0] == plain[:, 0], hits
    if has_text:
        chosen = _in_reach(plain_distance) & (plain_distance[:, 0] <= CLEAR_SHARE * _at_rank(plain_distance, 2))
        clear, first, all_k = float(chosen.mean()), first[chosen], hits[chosen, 0]
    quality = LinkageQuality(
        k=k,
        recall_at_1=float(first.mean()) if len(first) else 1.0,
        recall_at_k=float(all_k.mean()) if len(all_k) else 1.0,
        ties=float((distance[:, k - 1] == _at_rank(distance, k + 1)).mean()),
        kth_distance=float(np.median(distance[:, k - 1])),
        clear=clear,
    )
    if not schema.positions:
        common = encoded[0].bits & encoded[1].bits[found[:, k - 1]]
        fill = float(np.bitwise_count(encoded[1].bits).mean() / 8)
        quality = replace(quality, fill=fill, saturated=float((~common.any(axis=1)).mean()))
    if len(candidates) < max(len(everyone), STRANGER_RANK):
        return quality
    if has_text:
        return replace(quality, covered=float(_in_reach(distance).mean()))
    rows = np.sort(rng.permutation(len(candidates))[:MAX_QUERIES])
    some = encoded[1].take(rows)
    neighbours = _at_rank(_nearest([some, encoded[1]], metric, k, rows)[1], min(k, len(candidates) - 1))
    reach = float(np.quantile(neighbours, NEIGHBOUR_SHARE))
    unit = getattr(schema.fields[0].encoding, "metres", None) if len(schema.fields) == 1 else None
    return replace(
        quality,
        covered=float((distance[:, 0] <= reach).mean()),
        reach_metres=None if unit is None else reach * unit,
    )


def _nearest(
    tables: Sequence[EncodedTable | Floats], metric: str, k: int, own: Integers | None = None
) -> tuple[Integers, Floats]:
    """Return the nearest candidates, more than K if possible, and their distances; ``own`` rows are excluded."""
    from fedsim.linkage.soft_linkage import topk  # noqa: PLC0415 - numba takes a second, and few need it

    queries, candidates = tables
    wanted = min(max(k + 1, STRANGER_RANK) + (own is not None), len(candidates))
    chosen = "euclidean" if isinstance(queries, np.ndarray) else metric
    partner, distance = topk(queries, candidates, metric=chosen, k=wanted)
    if own is not None:  # equal records are one, so a record finds itself at distance zero
        others = partner != own[:, None]
        others[others.all(axis=1), -1] = False
        shape = len(partner), wanted - 1
        partner, distance = partner[others].reshape(shape), distance[others].reshape(shape)
    return partner, distance


def _in_reach(distance: Floats) -> Flags:
    """Return which texts have a partner much nearer than an unrelated candidate."""
    return distance[:, 0] <= NEAR_SHARE * _at_rank(distance, STRANGER_RANK)


def _at_rank(distance: Floats, rank: int) -> Floats:
    """Return the distance to the candidate at a rank, counted from 1; infinite if there is none."""
    return distance[:, rank - 1] if distance.shape[1] >= rank else np.full(len(distance), np.inf)


def _plain_tables(schema: Schema, tables: Sequence[pl.DataFrame], key: Key) -> list[EncodedTable | Floats]:
    """Return what the encoding approximates: unrounded points, or filters with hardly any hash collisions."""
    if schema.positions:
        return [
            np.hstack(
                [
                    _points(field)(*(IdentifierColumn(table[name], name) for name in field.columns))
                    for field in schema.fields
                ]
            )
            for table in tables
        ]
    longer = []
    for field in schema.fields:
        encoding: Any = field.encoding
        if any(setting.name == "bits" for setting in fields(encoding)):
            encoding = replace(encoding, bits=REFERENCE_FACTOR * encoding.bits)
        longer.append(SchemaField(field.column, encoding, field.salt))
    return [Schema(longer).encode(table, key) for table in tables]


def _points(field: SchemaField) -> Any:
    return field.encoding.points  # type: ignore[attr-defined]
