"""The tables of a job as arrays for every split and seed, linked as the coordinator would link them.

All tables are read in this process and nothing is sent, so neither approval nor policy is asked. Noise on similarities
and features, blur and dummies are as the job says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.features import Rules, fit_preparation
from fedsim.data.readers import read_table
from fedsim.data.splits import group_split, random_split
from fedsim.data.typed import typed
from fedsim.errors import SettingError
from fedsim.experiment.arrays import Arrays, Linked
from fedsim.experiment.equal_rows import equal_rows
from fedsim.experiment.own_identifiers import identifier_features
from fedsim.experiment.protected import protection_words
from fedsim.linkage.blind import Linking, link_blind
from fedsim.linkage.secret_file import own_secret
from fedsim.party.feature_noise import guarded_features
from fedsim.party.job import Job
from fedsim.party.keeping import Keep
from fedsim.party.own_columns import own_columns
from fedsim.party.own_table import OwnTable, classes_of, numbers_of
from fedsim.party.party_file import PartyFile
from fedsim.party.primary import own_groups
from fedsim.party.protecting import SECRET
from fedsim.party.run_folder import private_folder
from fedsim.protocol.parties import Role
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.features import Features
from fedsim.types import EncodedTable, Integers, Split

SPLITS = ("random", "group")


@dataclass(frozen=True, eq=False)
class JobCases:
    """The owners' tables; ``folder`` keeps filters and the secret of the noise, so that a second run links alike."""

    job: Job
    primary: OwnTable
    secondaries: dict[str, OwnTable]
    folder: Path
    unit: str

    @classmethod
    def read(cls, job: Job, files: Sequence[PartyFile], folder: Path, unit: str = "") -> JobCases:
        """Read the table of every party that has one."""
        holders = {own.party: _table(job, own) for own in files if own.role is not Role.COORDINATOR}
        missing = [str(party) for party in job.parties if party.role is not Role.COORDINATOR and party not in holders]
        if missing:
            raise SettingError(
                f"job '{job.name}' needs the file of {', '.join(missing)} as well; a comparison takes all tables"
            )
        primary = next(table for party, table in holders.items() if party.role is Role.PRIMARY)
        secondaries = {name: next(t for party, t in holders.items() if party.name == name) for name in job.secondaries}
        private_folder(folder)
        return cls(job, primary, secondaries, folder, unit)

    def cases(self, seeds: int, splits: Sequence[str] = SPLITS) -> Iterator[Arrays]:
        """Every seed of every split.

        The first one splits as the job itself does where it asks for that kind of split: a rung and the model that the
        job trains are judged by the same test records.
        """
        for seed in range(seeds):
            for kind in splits:
                rng = Chance(self.job.seed + seed, self.primary.own.name).rng("split")
                n = len(self.primary)
                split = group_split(self.groups, rng) if kind == "group" else random_split(n, rng)
                yield self._arrays(split, {"split": kind, "seed": self.job.seed + seed})

    @cached_property
    def labels(self) -> NDArray[Any]:
        """What is predicted, classes as numbers from zero."""
        label, party = self.primary.label(), str(self.primary.own.party)
        return classes_of(label, party)[0] if self.job.task.kind == "classification" else numbers_of(label, party)

    @cached_property
    def groups(self) -> Integers:
        """A number per record, the same where no linkage can tell them apart."""
        return own_groups(self.primary, self.job)

    @cached_property
    def _identifiers(self) -> pl.DataFrame:
        """Every identifier column of the primary once."""
        return self.primary.frame.select(self.primary.columns.linking)

    @cached_property
    def _encoded(self) -> dict[str, tuple[EncodedTable, EncodedTable]]:
        """Both sides of every linkage as filters."""
        return {
            name: (self._filters(self.primary, name), self._filters(table, name))
            for name, table in self.secondaries.items()
        }

    @cached_property
    def _guarded(self) -> dict[str, Features]:
        """Every secondary's features under the noise that the job wants."""
        return {
            name: guarded_features(
                _features(table, None), table.features(), self.job.protection, self._own_folder(table)
            )
            for name, table in self.secondaries.items()
        }

    @cached_property
    def _equal(self) -> dict[str, Integers]:
        """For every secondary the row whose identifiers are exactly a record's, or -1."""
        return {
            name: equal_rows(self.primary.compared(self.job, name), table.compared(self.job, name))
            for name, table in self.secondaries.items()
        }

    def _filters(self, table: OwnTable, name: str) -> EncodedTable:
        return Keep(self._own_folder(table), self.job).encoded(table, name)

    def _own_folder(self, table: OwnTable) -> Path:
        """Where a party's secret and filters lie; no other party's are in it."""
        folder = self.folder / table.own.name
        private_folder(folder)
        return folder

    def _arrays(self, split: Split, about: dict[str, Any]) -> Arrays:
        missing = self.primary.own.data.missing if self.primary.own.data else ()
        return Arrays(
            primary=plain_features(self.primary, split.train),
            own=identifier_features(typed(self._identifiers, missing), split.train),
            secondaries=tuple(self._linked(name, split) for name in self.secondaries),
            labels=self.labels,
            groups=self.groups,
            split=split,
            about={**job_words(self.job, self.primary, self.unit), **about},
        )

    def _linked(self, name: str, split: Split) -> Linked:
        terms = self.job.secondaries[name]
        counted = np.zeros(len(self.primary), dtype=bool)
        counted[split.train] = True
        rule = Linking(terms.metric, terms.k, terms.tau, terms.sigma, terms.min_degree, terms.dummies)
        linked, delivery = link_blind(*self._encoded[name], counted, rule, own_secret(self.folder / SECRET), name)
        return Linked(
            features=self._guarded[name],
            list_of=np.arange(len(self.primary)),
            partner=linked.order[delivery.partner],
            similarity=delivery.similarity,
            equal=self._equal[name],
            name=name,
        )


def _table(job: Job, own: PartyFile) -> OwnTable:
    if own.data is None:
        raise SettingError(f"the file of {own.party} names no data; add [data] file")
    frame = read_table(own.data.source, separator=own.data.separator, option="data.separator =")
    return OwnTable(frame, own_columns(job, own, frame.columns), own)


def job_words(job: Job, primary: OwnTable, unit: str) -> dict[str, Any]:
    """What is known of a job's trainings: its names, and by which protection they are told apart."""
    label = primary.columns.label
    words = {"name": job.name, "hash": job.hash, "unit": unit or str(label), "label": label, "task": job.task.kind}
    return {**words, **protection_words(job.protection)}


def plain_features(primary: OwnTable, rows: Integers) -> Features:
    """The primary's features without its identifiers: on the ladder these come in by rungs of their own.

    Where there is nothing beside them they stay, for a network needs something to learn from.
    """
    rest = tuple(column for column in primary.columns.features or () if column not in primary.columns.linking)
    return _features(
        replace(primary, columns=replace(primary.columns, features=rest or primary.columns.features)), rows
    )


def _features(table: OwnTable, rows: Integers | None) -> Features:
    frame = table.features()
    rules = Rules(kinds={name: kind for name, kind in table.own.features.kinds.items() if name in frame.columns})
    prepared = fit_preparation(frame, party=str(table.own.party), rows=rows, rules=rules, label=table.columns.label)
    return Features.of(prepared.apply(frame))
