"""The ladder of a job: with all tables in this process, or with the secondaries at their own sites."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedsim.config.job import Job, Protection
from fedsim.config.party_file import PartyFile, resolve_columns
from fedsim.contribution.arrays import LinkedSecondary, SplitArrays
from fedsim.contribution.identifiers import exact_match_rows, identifier_features
from fedsim.contribution.ladder import Ladder, train_ladder
from fedsim.contribution.result_store import ResultStore
from fedsim.contribution.rungs import (
    MessageCallback,
    Rung,
    RungOutcome,
    needs_no_partner,
    primary_data,
    run_training,
    rung_config,
    rung_links,
    rung_outcome,
    secondary_data,
    shuffled_order,
)
from fedsim.data.columns import infer_numbers
from fedsim.data.features import FeatureRules, fit_preprocessor
from fedsim.data.splits import group_split, random_split
from fedsim.data.table_reader import read_table
from fedsim.errors import FileError, SettingError
from fedsim.linkage.private_linkage import LinkageConfig, link_encoded_tables, load_private_links
from fedsim.privacy.keyed_prng import SECRET_BYTES, derive_subkey
from fedsim.protocol.cut_layer import NoisySecondary, wire_format
from fedsim.protocol.messages import Farewell, Role
from fedsim.protocol.roles.primary import ComparisonRun, RemoteSecondary
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.session import close_sessions as tell_all
from fedsim.runs.run_folder import make_private_folder
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.runtime.party_data import PartyData, class_labels, numeric_labels, read_party_data
from fedsim.runtime.primary import PreparedPrimary, identifier_groups, prepare_primary
from fedsim.runtime.run_store import SECRET_FILE, RunStore, cut_noise_from_secret, load_cut_noise, protect_features
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import start_secondary
from fedsim.storage.secrets import load_or_create_secret
from fedsim.training import Config, NeighbourList, SecondaryData, TrainingResult, train_with
from fedsim.training.data import as_features
from fedsim.types import EncodedTable, Integers, Split

# Rungs under the clip and the noise that a job lays on what crosses the cut, with all parties in this process


@dataclass(frozen=True, eq=False)
class ProtectedTrainer:
    """Trains rungs as the parties of a job would; ``secret`` stands for the secrets of all of them."""

    protection: Protection
    secret: bytes

    def trained(self, rung: Rung, arrays: SplitArrays) -> RungOutcome:
        """One training; of whoever learns alone nothing crosses, and nothing is laid on it."""
        if needs_no_partner(rung) or not protects_cut(self.protection):
            return run_training(rung, arrays)
        config, split = rung_config(rung, arrays.about["seed"], device="cpu"), arrays.split
        steps = config.epochs * config.steps_per_epoch(len(split.train))
        lists = [
            NeighbourList(data.neighbours, (self._held(data, config, steps),))
            for data in secondary_data(rung, arrays)
            if data.neighbours
        ]
        return rung_outcome(train_with(primary_data(rung, arrays), lists, split, config))

    def _held(self, data: SecondaryData, config: Config, steps: int) -> NoisySecondary:
        terms, secret = self.protection, derive_subkey(self.secret, f"comparison with seed {config.seed}", SECRET_BYTES)
        below = replace(config.secondary, clip=terms.activations.clip if terms.activations else None)
        party = start_secondary(data.name, as_features(data.features), below, total_steps=steps)
        return NoisySecondary(
            party,
            activation_noise=cut_noise_from_secret(terms.activations, secret),
            gradient_noise=cut_noise_from_secret(terms.gradients, secret),
        )


def protection_facts(protection: Protection) -> dict[str, str]:
    """What trainings under a protection are told apart by; nothing where there is none."""
    words = protection.model_dump_json(exclude_none=True)
    return {} if words == "{}" else {"protection": words}


def protects_cut(protection: Protection) -> bool:
    """Whether a job clips or lays noise on what crosses the cut."""
    return protection.activations is not None or protection.gradients is not None


# The tables of a job as arrays for every split and seed, linked as the coordinator would link them
#
# All tables are read in this process and nothing is sent, so neither approval nor policy is asked. Noise on
# similarities and features, blur and dummies are as the job says.


SPLITS = ("random", "group")


@dataclass(frozen=True, eq=False)
class JobCases:
    """The owners' tables; ``folder`` keeps filters and the secret of the noise, so that a second run links alike."""

    job: Job
    primary: PartyData
    secondaries: dict[str, PartyData]
    folder: Path
    unit: str

    @classmethod
    def read(cls, job: Job, files: Sequence[PartyFile], folder: Path, unit: str = "") -> JobCases:
        """Read the table of every party that has one."""
        holders = {own.party: _load_party_table(job, own) for own in files if own.role is not Role.COORDINATOR}
        missing = [str(party) for party in job.parties if party.role is not Role.COORDINATOR and party not in holders]
        if missing:
            raise SettingError(
                f"job '{job.name}' needs the file of {', '.join(missing)} as well; a comparison takes all tables"
            )
        primary = next(table for party, table in holders.items() if party.role is Role.PRIMARY)
        secondaries = {name: next(t for party, t in holders.items() if party.name == name) for name in job.secondaries}
        make_private_folder(folder)
        return cls(job, primary, secondaries, folder, unit)

    def cases(self, seeds: int, splits: Sequence[str] = SPLITS) -> Iterator[SplitArrays]:
        """Every seed of every split.

        The first one splits as the job itself does where it asks for that kind of split: a rung and the model that the
        job trains are judged by the same test records.
        """
        for seed in range(seeds):
            for kind in splits:
                rng = RandomSource(self.job.seed + seed, self.primary.own.name).rng("split")
                n = len(self.primary)
                split = group_split(self.groups, rng) if kind == "group" else random_split(n, rng)
                yield self._arrays(split, {"split": kind, "seed": self.job.seed + seed})

    @cached_property
    def labels(self) -> NDArray[Any]:
        """What is predicted, classes as numbers from zero."""
        label, party = self.primary.label(), str(self.primary.own.party)
        return class_labels(label, party)[0] if self.job.task.kind == "classification" else numeric_labels(label, party)

    @cached_property
    def groups(self) -> Integers:
        """A number per record, the same where no linkage can tell them apart."""
        return identifier_groups(self.primary, self.job)

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
            name: protect_features(
                _prepare_features(table, None), table.features(), self.job.protection, self._own_folder(table)
            )
            for name, table in self.secondaries.items()
        }

    @cached_property
    def _equal(self) -> dict[str, Integers]:
        """For every secondary the row whose identifiers are exactly a record's, or -1."""
        return {
            name: exact_match_rows(self.primary.compared(self.job, name), table.compared(self.job, name))
            for name, table in self.secondaries.items()
        }

    def _filters(self, table: PartyData, name: str) -> EncodedTable:
        return RunStore(self._own_folder(table), self.job).encoded(table, name)

    def _own_folder(self, table: PartyData) -> Path:
        """Where a party's secret and filters lie; no other party's are in it."""
        folder = self.folder / table.own.name
        make_private_folder(folder)
        return folder

    def _arrays(self, split: Split, about: dict[str, Any]) -> SplitArrays:
        missing = self.primary.own.data.missing if self.primary.own.data else ()
        return SplitArrays(
            primary=features_without_identifiers(self.primary, split.train),
            own=identifier_features(infer_numbers(self._identifiers, missing), split.train),
            secondaries=tuple(self._linked(name, split) for name in self.secondaries),
            labels=self.labels,
            groups=self.groups,
            split=split,
            about={**job_facts(self.job, self.primary, self.unit), **about},
        )

    def _linked(self, name: str, split: Split) -> LinkedSecondary:
        terms = self.job.secondaries[name]
        counted = np.zeros(len(self.primary), dtype=bool)
        counted[split.train] = True
        rule = LinkageConfig(terms.metric, terms.k, terms.tau, terms.sigma, terms.min_degree, terms.dummies)
        linked, delivery = link_encoded_tables(
            *self._encoded[name], counted, rule, load_or_create_secret(self.folder / SECRET_FILE), name
        )
        return LinkedSecondary(
            features=self._guarded[name],
            list_of=np.arange(len(self.primary)),
            partner=linked.order[delivery.partner],
            similarity=delivery.similarity,
            equal=self._equal[name],
            name=name,
        )


def _load_party_table(job: Job, own: PartyFile) -> PartyData:
    if own.data is None:
        raise SettingError(f"the file of {own.party} names no data; add [data] file")
    frame = read_table(own.data.source, separator=own.data.separator, option="data.separator =")
    return PartyData(frame, resolve_columns(job, own, frame.columns), own)


def job_facts(job: Job, primary: PartyData, unit: str) -> dict[str, Any]:
    """What is known of a job's trainings: its names, and by which protection they are told apart."""
    label = primary.columns.label
    words = {"name": job.name, "hash": job.hash, "unit": unit or str(label), "label": label, "task": job.task.kind}
    return {**words, **protection_facts(job.protection)}


def features_without_identifiers(primary: PartyData, rows: Integers) -> Features:
    """The primary's features without its identifiers: on the ladder these come in by rungs of their own.

    Where there is nothing beside them they stay, for a network needs something to learn from.
    """
    rest = tuple(column for column in primary.columns.features or () if column not in primary.columns.linking)
    return _prepare_features(
        replace(primary, columns=replace(primary.columns, features=rest or primary.columns.features)), rows
    )


def _prepare_features(table: PartyData, rows: Integers | None) -> Features:
    frame = table.features()
    rules = FeatureRules(kinds={name: kind for name, kind in table.own.features.kinds.items() if name in frame.columns})
    prepared = fit_preprocessor(frame, party=str(table.own.party), rows=rows, rules=rules, label=table.columns.label)
    return Features.of(prepared.apply(frame))


log = logging.getLogger("fedsim.parties")


def train_remote_ladder(
    post: PartyContext, results: ResultStore, rungs: Sequence[Rung], seeds: int, unit: str, tell: MessageCallback
) -> Ladder:
    """The ladder of a trained job, with the secondaries where they are."""
    post.connection.serves_predictions = True
    torch.set_num_threads(post.job.training.threads)
    table = read_party_data(post.job, post.party_file)
    reception = post.listen(post.secondaries)
    reaches = {party.name: ReconnectingPeer(partial(reception.session_with, party)) for party in post.secondaries}
    ladder = train_ladder(
        remote_cases(post, table, seeds, unit), rungs, results, tell, RemoteTrainer(post, reaches).trained
    )
    tell_all(post.sessions(), Farewell())
    return ladder


def remote_cases(post: PartyContext, table: PartyData, seeds: int, unit: str = "") -> Iterator[SplitArrays]:
    """The job's own split and links, for every seed of training; features of the secondaries are not among them."""
    prepared = prepare_primary(table, post)
    linked = tuple(_delivered_links(post, name, len(table)) for name in post.job.secondaries)
    for seed in range(seeds):
        yield _remote_arrays(post, table, prepared, linked, post.job.seed + seed, unit)


@dataclass(frozen=True, eq=False)
class RemoteTrainer:
    """Trains a rung with the secondaries of these conversations."""

    post: PartyContext
    reaches: Mapping[str, ReconnectingPeer]

    def trained(self, rung: Rung, arrays: SplitArrays) -> RungOutcome:
        """One training; whenever a secondary starts anew, it begins again."""
        self.post.connection.stop_signal.check()
        if needs_no_partner(rung):
            return run_training(rung, arrays)
        while True:
            try:
                return rung_outcome(self._result(rung, arrays))
            except PeerRestarted as restarted:
                log.warning("%s; this study begins again", restarted)

    def _result(self, rung: Rung, arrays: SplitArrays) -> TrainingResult:
        job, seed = self.post.job, arrays.about["seed"]
        study = ComparisonRun(seed, placebo=rung.partner == "placebo")
        noise, form = load_cut_noise(job.protection.gradients, self.post.folder), wire_format(job.training.wire)
        others = shuffled_order(rung, arrays)
        held = []
        for linked in arrays.secondaries:
            holder = RemoteSecondary(self.reaches[linked.name].session(), form, noise=noise, study=study)
            held.append(NeighbourList(Neighbours(*rung_links(rung, linked, others)), (holder,)))
        return train_with(primary_data(rung, arrays), held, arrays.split, rung_config(rung, seed, device="cpu"))


def _remote_arrays(
    post: PartyContext,
    table: PartyData,
    prepared: PreparedPrimary,
    linked: tuple[LinkedSecondary, ...],
    seed: int,
    unit: str,
) -> SplitArrays:
    job, missing = post.job, table.own.data.missing if table.own.data else ()
    identifiers = infer_numbers(table.frame.select(table.columns.linking), missing)
    return SplitArrays(
        primary=features_without_identifiers(table, prepared.split.train),
        own=identifier_features(identifiers, prepared.split.train),
        secondaries=linked,
        labels=prepared.data.labels,
        groups=identifier_groups(table, job),
        split=prepared.split,
        about={**job_facts(job, table, unit), "split": job.task.split, "seed": seed},
    )


def _delivered_links(post: PartyContext, name: str, n_records: int) -> LinkedSecondary:
    """The links that the coordinator delivered for training; the partner's features are elsewhere."""
    path = post.folder / "lists" / f"{name}.safetensors"
    if not path.is_file():
        raise FileError(f"no links of job '{post.job.name}' lie in {post.folder}; train it first")
    found = load_private_links(path)
    nowhere = np.full(n_records, -1)
    return LinkedSecondary(
        Features(np.zeros((0, 0), np.float32)), np.arange(n_records), found.partner, found.similarity, nowhere, name
    )
