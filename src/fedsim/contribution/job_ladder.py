"""The ladder of a job: with all tables in this process, or with the secondaries at their own sites."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.contribution.ladder import Ladder, train_ladder
from fedsim.contribution.linked_tables import PreparedTable, prepare_table
from fedsim.contribution.rungs import (
    LinkedSecondary,
    ResultStore,
    Rung,
    RungOutcome,
    SplitArrays,
    run_training,
    train_network,
)
from fedsim.data.features import FeatureRules, fit_preprocessor, name_trigrams, text_columns
from fedsim.errors import FileError, SettingError
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Farewell, Role
from fedsim.protocol.roles.primary_role import ComparisonRun
from fedsim.protocol.session import PeerRestarted, close_sessions
from fedsim.registry import SPLITS
from fedsim.runs.run_folder import make_private_folder
from fedsim.runtime.linking import stored_links
from fedsim.runtime.partner_rows import fetch_embedded, load_rows, remote_secondary
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.runtime.primary import prepare_primary
from fedsim.runtime.run_store import RunStore, network_features
from fedsim.splitnn import Features, party_model
from fedsim.training import NeighbourList
from fedsim.training.loop import TrainingContext
from fedsim.types import AnyArray, Floats32, Integers, Links

log = logging.getLogger("fedsim.parties")


def ladder_splits(job: Job) -> tuple[str, ...]:
    """Return the splits of a job's ladder; the last one, of which the headline speaks, is the job's own.

    Beside a split by time or by a column there is no other: it would train on records that the job tests on.
    """
    own = job.task.split
    other = SPLITS.detail(own, "compared_with")
    return (other, own) if other else (own,)


# The primary's identifiers as features


def identifier_features(frame: pl.DataFrame, rows: Integers) -> Features:
    """Return numbers and dates as they are and text as trigram counts, scaled by the training ``rows``.

    >>> identifier_features(pl.DataFrame({"lat": [1.0, 2.0], "name": ["fox", "ox"]}), np.arange(2))
    Features(2 records x 65 numbers and 0 codes)
    """
    texts = text_columns(frame)
    plain = frame.drop(texts)
    rules = FeatureRules(identifiers=tuple(plain.columns))
    prepared = fit_preprocessor(plain, party="primary", rows=rows, rules=rules).apply(plain)
    counts = name_trigrams(frame, texts)
    deviation = counts[rows].std(axis=0)
    counts = (counts - counts[rows].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    numbers = np.hstack([prepared.numbers.reshape(len(frame), -1), counts]).astype(np.float32)
    return replace(prepared, numbers=numbers)


# All tables in this process. Nothing is sent, so neither approval nor policy is checked; noise and blur are
# those of the job.


@dataclass(frozen=True, eq=False)
class JobCases:
    """The tables of a job as arrays for every split and seed.

    ``folder`` stores filters, tokens and the secrets of noise and keys, so that a second run links alike. With
    ``as_in_job`` the primary has the features of the job; otherwise its identifiers are apart, for rungs with and
    without them.
    """

    job: Job
    primary: PartyData
    secondaries: dict[str, PartyData]
    folder: Path
    unit: str
    as_in_job: bool = False

    @classmethod
    def read(
        cls, job: Job, files: Sequence[PartyFile], folder: Path, unit: str = "", *, as_in_job: bool = False
    ) -> JobCases:
        """Read the tables of all parties but the coordinator."""
        tables = {file.party: PartyData.read(job, file) for file in files if file.role is not Role.COORDINATOR}
        missing = [str(party) for party in job.parties if party.role is not Role.COORDINATOR and party not in tables]
        if missing:
            message = f"the file of {', '.join(missing)} is missing; a comparison of job '{job.name}' needs all tables"
            raise SettingError(message, code="missing-party-file")
        primary = next(table for party, table in tables.items() if party.role is Role.PRIMARY)
        labels, classes = primary.labels
        primary = primary.take(np.flatnonzero(labels >= 0 if classes else np.isfinite(labels)))
        by_name = {party.name: table for party, table in tables.items() if party.role is Role.SECONDARY}
        make_private_folder(folder)
        return cls(job, primary, {name: by_name[name] for name in job.secondaries}, folder, unit, as_in_job)

    def cases(self, seeds: int, splits: Sequence[str] | None = None) -> Iterator[SplitArrays]:
        """Yield every seed of every split, by default of those that :func:`ladder_splits` returns.

        The first seed splits as the job itself does if the job uses that kind of split, so that a rung and the job's
        model are evaluated on the same test records.
        """
        splits = ladder_splits(self.job) if splits is None else splits
        for seed in range(seeds):
            for kind in splits:
                rng = party_model.RandomSource(self.job.seed + seed, self.primary.own.name).rng("split")
                split = self.primary.draw_split(kind, rng)
                features = network_features if self.as_in_job else features_without_identifiers
                yield SplitArrays(
                    primary=features(self.primary, split.train),
                    own=identifier_features(self.primary.own_identifiers, split.train),
                    secondaries=tuple(table.linked(split.train) for table in self._prepared),
                    labels=self.labels,
                    groups=self.groups,
                    split=split,
                    about={**job_facts(self.job, self.primary, self.unit), "split": kind, "seed": self.job.seed + seed},
                )

    @cached_property
    def labels(self) -> AnyArray:
        """The labels as they are learnt, classes as integers from zero."""
        return learnt_labels(self.job, self.primary.labels[0])

    @cached_property
    def groups(self) -> Integers:
        """A number per record, the same for records that no linkage can distinguish."""
        return self.primary.groups

    @cached_property
    def _prepared(self) -> list[PreparedTable]:
        return [prepare_table(self.job, self.primary, table, self.folder) for table in self.secondaries.values()]


def learnt_labels(job: Job, labels: AnyArray) -> AnyArray:
    """Return labels on the scale on which a job learns them, so that all rungs are compared on it."""
    return np.log(labels) if job.task.label_scale == "log" else labels


def job_facts(job: Job, primary: PartyData, unit: str) -> dict[str, Any]:
    """Return what is known of a job's trainings; a protection is part of their identity."""
    label, protection = primary.columns.label, job.protection.model_dump_json(exclude_none=True)
    label = f"log({label})" if job.task.label_scale == "log" else label
    unit = unit if job.task.label_scale == "linear" else ""
    facts = {"name": job.name, "hash": job.hash, "unit": unit or str(label), "label": label, "task": job.task.kind}
    return facts if protection == "{}" else {**facts, "protection": protection}


def features_without_identifiers(primary: PartyData, rows: Integers) -> Features:
    """Return the primary's features without its identifiers, which other rungs of the ladder add.

    If there are no other columns they stay, because a network needs something to learn from.
    """
    rest = tuple(column for column in primary.columns.features or () if column not in primary.columns.linking)
    columns = replace(primary.columns, features=rest or primary.columns.features)
    return network_features(replace(primary, columns=columns), rows)


# Secondaries at their own sites. The primary's process trains the ladder after the job, on its links and its split;
# the secondaries run with ``--stay`` and take part in as many comparison runs as their policy allows. Exact matches are
# left out: no party knows them.


def train_remote_ladder(
    context: PartyContext,
    results: ResultStore,
    rungs: Sequence[Rung],
    seeds: int,
    unit: str,
    report: Callable[[str], None],
) -> Ladder:
    """Train the ladder of a trained job with the secondaries at their own sites."""
    context.connection.serves_predictions = True
    torch.set_num_threads(context.job.training.threads)
    table = PartyData.read(context.job, context.party_file, approved=True)
    acceptor = context.listen(context.secondaries)
    peers = {party.name: ReconnectingPeer(partial(acceptor.session_with, party)) for party in context.secondaries}
    trainer = RemoteTrainer(context, peers)
    needs_embedding = any(rung.inputs == "embedded" for rung in rungs) and not context.job.protection.sealed
    cases = remote_cases(context, table, seeds, unit, trainer.fetch_embedding if needs_embedding else None)
    # Secondaries refuse more epochs than the job has; sealed rows are here already.
    lengthen = context.job.protection.sealed
    ladder = train_ladder(cases, rungs, results, report, trainer.train, lengthen=lengthen, tell_apart=True)
    close_sessions(context.sessions(), Farewell())
    return ladder


def remote_cases(
    context: PartyContext,
    table: PartyData,
    seeds: int,
    unit: str = "",
    fetch_embedding: Callable[[str, Links], Floats32] | None = None,
) -> Iterator[SplitArrays]:
    """Yield the job's own split and links for every training seed, without features of the secondaries.

    Their embeddings are fetched if the caller says how.
    """
    job, prepared = context.job, prepare_primary(table, context)
    rows, every, nobody = prepared.split.train, np.arange(len(table)), np.full(len(table), -1)
    linked = []
    for name in job.secondaries:
        links, features = stored_links(RunStore.of(context), name), Features(np.zeros((0, 0), np.float32))
        partner: AnyArray = links.partner
        embedding = fetch_embedding(name, links) if fetch_embedding else None
        if job.protection.sealed:
            stored = load_rows(context, name, datetime.now(UTC))
            if len(stored.missing(partner)):
                message = f"the rows of '{name}' that this job stored were deleted; train a new job to compare it"
                raise FileError(message, code="rows-deleted")
            features, partner, embedding = stored.features, stored.places(partner), stored.values
        linked.append(LinkedSecondary(features, every, partner, links.similarity, nobody, name, embedding))
    for seed in range(seeds):
        yield SplitArrays(
            primary=features_without_identifiers(table, rows),
            own=identifier_features(table.own_identifiers, rows),
            secondaries=tuple(linked),
            labels=learnt_labels(job, prepared.data.labels),
            groups=table.groups,
            split=prepared.split,
            about={**job_facts(job, table, unit), "split": job.task.split, "seed": job.seed + seed},
        )


@dataclass(frozen=True, eq=False)
class RemoteTrainer:
    """Trains rungs with remote secondaries."""

    context: PartyContext
    peers: Mapping[str, ReconnectingPeer]

    def train(self, rung: Rung, arrays: SplitArrays) -> RungOutcome:
        """Train one rung, again from the start whenever a secondary restarts."""
        self.context.connection.stop_signal.check()
        if rung.needs_no_partner or self.context.job.protection.sealed:  # sealed rows are here already
            return run_training(rung, arrays)
        order = rung.link_order(arrays)
        rows = [
            ComparedRows(
                self.context,
                self.peers[linked.name],
                Links(*rung.links(linked, order)),
                ComparisonRun(arrays.about["seed"], placebo=rung.is_placebo(linked)),
            )
            for linked in rung.secondaries(arrays)
        ]
        return train_network(rung, arrays, rows, device=self.context.party_file.device, restarted=_report_restart)

    def fetch_embedding(self, name: str, links: Links) -> Floats32:
        """Return the embedding of the linked rows of a secondary, as it sent it to the job; other rows are zeros."""
        while True:
            try:
                remote = remote_secondary(self.context, self.peers[name].session())
                found = fetch_embedded(remote, links)
            except PeerRestarted as restarted:
                log.warning("%s; its embedding is requested again", restarted)
            else:
                rows = np.zeros((remote.n_records, found.rows.shape[1]), np.float32)
                rows[np.unique(links.partner)] = found.rows
                return rows


def _report_restart(restarted: PeerRestarted) -> None:
    log.warning("%s; this comparison run starts again", restarted)


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """Partners in one list of a comparison run, whose rows stay with the secondary."""

    context: PartyContext
    peer: ReconnectingPeer
    links: Links
    run: ComparisonRun

    def open(self, training_context: TrainingContext) -> NeighbourList:
        """Return the list with the secondary over its present session."""
        session, device = self.peer.session(), training_context.device
        return NeighbourList(self.links, (remote_secondary(self.context, session, device=device, study=self.run),))

    def embedded(self) -> None:
        """Return nothing: trees are fitted beside the stored results of networks."""

    def finish(self) -> None:
        """Do nothing: the next run follows in the same session."""
