"""The attacks on averages: what they show of one row beyond its group, who is in the table, and what comes of two jobs.

The attacker is granted the averages themselves, as if it had inverted the embedding without error, and the size of
every group. Letters: n rows, d numbers, u entries of the encrypted table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.random import Generator

from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.data.features import FeaturePreprocessor
from fedsim.errors import InputError
from fedsim.linkage.direct.groups import average_features
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.pipeline import release
from fedsim.pipeline.party_table import PartyData
from fedsim.pipeline.release import Release
from fedsim.types import Flags, Floats, Integers
from fedsim_audit.attacks.attack_finding import AttackFinding, auc_estimate, binomial_estimate, bootstrap_estimate
from fedsim_audit.audit_report import Guarantee, PlannedAttack
from fedsim_audit.linkage_attacks import primary_attack
from fedsim_audit.split_attacks import sample_known_rows

MAX_BEYOND = 0.05  # of the variance within groups: what attacks that know a twentieth of the rows may explain
RIDGE = 1.0
DIFFERENCE_ROUNDS = 8
HELD_OUT = 5  # a table without every fifth row stands beside the whole one


@dataclass(frozen=True, eq=False, repr=False)
class SharedTable:
    """A secondary's table, and what leaves of it."""

    table: PartyData
    name: str

    @property
    def m(self) -> int:
        """The least number of rows behind a vector."""
        return self.table.job.secondaries[self.name].m or 1

    @cached_property
    def preparation(self) -> FeaturePreprocessor:
        """How features become numbers."""
        return self.table.fit_features(least=self.m)

    @cached_property
    def rows(self) -> Floats:
        """The numbers of every row, (n, d)."""
        return self.preparation.apply(self.table.typed_features).numbers.astype(np.float64)

    @cached_property
    def released(self) -> Release:
        """What leaves."""
        return release.release_table(self.table, self.name, self.preparation)

    @cached_property
    def promised(self) -> Floats:
        """The average of each row's group of at least m rows, as the level promises it, (n, d); NaN without a group."""
        terms = self.table.job.secondaries[self.name]
        fields = terms.token_schema.row_tokens(self.table.token_identifiers(self.name))
        features = self.preparation.apply(self.table.typed_features)
        group = terms.level.group(fields, features, self.m).group
        averages = average_features(features, self.preparation.gaps, group, self.m).numbers
        return np.where(group[:, np.newaxis] < 0, np.nan, averages[np.maximum(group, 0)])

    @cached_property
    def varying(self) -> Integers:
        """The numbers that vary within groups."""
        inside = np.nan_to_num(self.rows - self.promised)
        return np.flatnonzero(inside.std(axis=0) > 0)


def share_attacks(table: PartyData, name: str, rng: Generator) -> Iterator[PlannedAttack]:
    """Plan the attacks on the averages of a table."""
    shared = SharedTable(table, name)
    m = shared.m
    promised = Guarantee(f"averages of {m} rows show next to nothing of one row beyond its group", MAX_BEYOND)
    learns = f"features of a row of {name} beyond the average of its group"
    yield primary_attack(AttackKind.ATTRIBUTE, "attribute", learns, partial(attribute_attack, shared, rng), promised)
    shown = Guarantee("an average is nearer to rows that are in it than to others", disclosed=True)
    learns = f"whether a row that it knows is in the table of {name}"
    yield primary_attack(AttackKind.MEMBERSHIP, "membership", learns, partial(membership_attack, shared, rng), shown)
    learns, promised = f"rows of {name} by the difference of two jobs", Guarantee("groups are fixed for life", 0.0)
    run = partial(difference_attack, shared, rng)
    yield primary_attack(AttackKind.DIFFERENCES, "differences", learns, run, promised)


def attribute_attack(shared: SharedTable, rng: Generator) -> AttackFinding:
    """Estimate the features of rows whose identifiers are known, with all features of a twentieth of the others.

    Two estimates start from the released vector of the row's entry: the average without the known rows of the group,
    and a ridge regression on vector, that difference and place among the known rows. The score is the share of the
    variance within groups that the better one explains.
    """
    rows, place, columns = shared.rows[:, shared.varying], shared.released.place, shared.varying
    targets = np.flatnonzero((place >= 0) & np.isfinite(shared.promised).all(axis=1))
    if not len(targets) or not len(columns):
        raise InputError("no row is in a group with others that differ from it", code="no-targets")
    entry, features = place[targets], rows[targets]
    seen = shared.released.features.numbers.astype(np.float64)[:, columns][entry]
    _, group = np.unique(seen, axis=0, return_inverse=True)
    group = group.ravel()
    known = np.zeros(len(targets), np.bool_)
    known[sample_known_rows(len(targets), rng)] = True
    size, count = np.bincount(group), np.bincount(group, known)
    total = np.stack([np.bincount(group, known * column) for column in features.T], axis=1)
    left = np.maximum(size - count, 1)[:, np.newaxis]
    rest = ((size[:, np.newaxis] * _means(seen, group) - total) / left)[group]
    base = shared.promised[targets][:, columns]
    evidence = np.column_stack([seen, rest, _identifiers(shared, targets)])
    guesses = {"difference": rest, "regression": rest + _ridge(evidence, features - rest, known)}
    hidden = np.flatnonzero(~known)
    inside = ((features - base)[hidden] ** 2).sum(axis=1)

    def beyond(guess: Floats, rows: Integers) -> float:
        wrong = ((features - guess)[hidden] ** 2).sum(axis=1)
        return max(-1.0, 1.0 - float(wrong[rows].sum()) / max(float(inside[rows].sum()), 1e-12))

    every = np.arange(len(hidden))
    best = max(guesses, key=lambda name: beyond(guesses[name], every))
    score = bootstrap_estimate(partial(beyond, guesses[best]), len(hidden), rng)
    figures = {f"by {name}": beyond(guess, every) for name, guess in guesses.items()}
    whole = float(((features - features.mean(axis=0))[hidden] ** 2).sum())
    figures |= {"known rows": float(known.sum()), "R2 of the averages themselves": 1.0 - float(inside.sum()) / whole}
    knew = f"the averages, identifiers of all rows, and all of {int(known.sum()):,} rows"
    what = "R2 beyond the group's average"
    return AttackFinding(
        "attribute", AttackKind.ATTRIBUTE, Adversary.PRIMARY, what, score, 0.0, len(hidden), knew, figures
    )


def _means(values: Floats, group: Integers) -> Floats:
    return np.stack([np.bincount(group, column) for column in values.T], axis=1) / np.bincount(group)[:, np.newaxis]


def _identifiers(shared: SharedTable, rows: Integers) -> Floats:
    """Return the numeric identifiers of some rows, standardised, (r, i)."""
    frame = shared.table.token_identifiers(shared.name)
    numeric = [name for name, kind in frame.schema.items() if kind.is_numeric()]
    columns = (frame[name].cast(pl.Float64).fill_null(0.0).to_numpy() for name in numeric)
    values = np.column_stack([np.zeros((len(frame), 0)), *columns])[rows]
    return np.asarray((values - values.mean(axis=0)) / np.where(values.std(axis=0) > 0, values.std(axis=0), 1.0))


def _ridge(evidence: Floats, wanted: Floats, known: Flags) -> Floats:
    """Return what a ridge regression on the known rows estimates for all."""
    scaled = (evidence - evidence.mean(axis=0)) / np.where(evidence.std(axis=0) > 0, evidence.std(axis=0), 1.0)
    columns = np.column_stack([np.ones(len(scaled)), scaled])
    ours = columns[known]
    return columns @ np.linalg.solve(
        ours.T @ ours + RIDGE * len(ours) * np.eye(columns.shape[1]), ours.T @ wanted[known]
    )


def membership_attack(shared: SharedTable, rng: Generator) -> AttackFinding:
    """Tell rows in the table from rows that are not, by how near the average of their place is to their features.

    Every fifth row is taken out of the table; it and as many others, whose group is as large, are the candidates. A row
    that was taken out is looked up where the row nearest to it by identifiers stands.
    """
    table, n = shared.table, len(shared.table)
    order = rng.permutation(n)
    outside, inside = order[: n // HELD_OUT], order[n // HELD_OUT :]
    kept = SharedTable(table.take(inside), shared.name)
    numbers = kept.preparation.apply(table.typed_features).numbers.astype(np.float64)
    identifiers = _identifiers(shared, np.arange(n))
    if not identifiers.shape[1]:
        raise InputError("rows are linked by text, so that an opened row is in the table", code="no-targets")
    members = rng.permutation(len(inside))[: len(outside)]
    distance = ((identifiers[outside, np.newaxis] - identifiers[np.newaxis, inside]) ** 2).sum(axis=2)
    entry = np.concatenate([kept.released.place[members], kept.released.place[distance.argmin(axis=1)]])
    candidates, found = np.concatenate([inside[members], outside]), entry >= 0
    averages = kept.released.features.numbers.astype(np.float64)[np.maximum(entry, 0)]
    spread = np.where(numbers.std(axis=0) > 0, numbers.std(axis=0), 1.0)
    near = -(((numbers[candidates] - averages) / spread) ** 2).mean(axis=1)
    positive = np.arange(len(candidates)) < len(members)
    score = auc_estimate(near[found], positive[found], rng)
    knew, kind = "all features and identifiers of the candidates", AttackKind.MEMBERSHIP
    return AttackFinding(
        "membership",
        kind,
        Adversary.PRIMARY,
        "AUC",
        score,
        0.5,
        int(found.sum()),
        knew,
        {"candidates": len(candidates)},
    )


def difference_attack(shared: SharedTable, rng: Generator) -> AttackFinding:
    """Subtract the averages of two jobs, between which rows came or went.

    The first job has the table without m - 1 rows, the second with them, the third without one more. A row is found
    where groups of two jobs differ by fewer than m rows, of which it is one.
    """
    found = changed = groups = 0
    for _ in range(DIFFERENCE_ROUNDS):
        order = rng.permutation(len(shared.table))
        came, went = order[: shared.m - 1], order[shared.m - 1]
        every = np.arange(len(order))
        jobs = _shown(shared, [np.sort(order[shared.m - 1 :]), every, every[every != went]])
        rows = {*came.tolist(), int(went)}
        isolated = {row for one, other in combinations(jobs, 2) for row in _isolated(one, other, shared.m)}
        found, changed, groups = found + len(rows & isolated), changed + len(rows), groups + len(jobs[-1])
    score = binomial_estimate(found, changed)
    knew, kind = "the averages of three jobs, and which rows are in which group", AttackKind.DIFFERENCES
    what, figures = "share of the rows that came or went", {"groups": groups / DIFFERENCE_ROUNDS}
    return AttackFinding("differences", kind, Adversary.PRIMARY, what, score, 0.0, changed, knew, figures)


def _shown(shared: SharedTable, tables: Sequence[Integers]) -> list[set[frozenset[int]]]:
    """Return the rows behind every vector of jobs on tables of these rows, one after the other."""
    shown, name = [], shared.name
    with TemporaryDirectory() as folder:
        keys = KeyStore(Path(folder))
        keys.create(name, datetime.now(UTC))
        for rows in tables:
            some = shared.table.take(rows)
            shown.append(_groups(release.release_table(some, name, shared.preparation, keys), rows))
    return shown


def _isolated(before: set[frozenset[int]], after: set[frozenset[int]], m: int) -> set[int]:
    """Return the rows that differences of two groups show among fewer than m."""
    of_row = {row: group for group in after for row in group}
    pairs = {(group, of_row[row]) for group in before for row in group if row in of_row}
    return {row for group, other in pairs if len(group ^ other) < m for row in group ^ other}


def _groups(released: Release, rows: Integers) -> set[frozenset[int]]:
    """Return the sets of rows with the same vector."""
    listed = released.place >= 0
    vector = released.features.numbers[released.place[listed]]
    _, group = np.unique(vector, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    parts = np.split(rows[listed][order], 1 + np.flatnonzero(np.diff(group.ravel()[order])))
    return {frozenset(part.tolist()) for part in parts}
