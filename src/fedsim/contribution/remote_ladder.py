"""The ladder of a trained job with the secondaries at their own sites, over the network.

The primary's process climbs it after training, on the links and the split of the job; the secondaries run with
``--stay`` and take part in as many studies as their policy says. Exact matches are left out: nobody here knows them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedsim.contribution.arrays import LinkedSecondary, SplitArrays
from fedsim.contribution.identifiers import identifier_features
from fedsim.contribution.ladder import Ladder, train_ladder
from fedsim.contribution.local_ladder import features_without_identifiers, job_facts
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
    shuffled_order,
)
from fedsim.data.columns import infer_numbers
from fedsim.errors import FileError
from fedsim.linkage.private_linkage import load_private_links
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import Farewell
from fedsim.protocol.roles.primary import ComparisonRun, RemoteSecondary
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.session import close_sessions as tell_all
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.runtime.party_data import PartyData, read_party_data
from fedsim.runtime.primary import PreparedPrimary, identifier_groups, prepare_primary
from fedsim.runtime.run_store import load_cut_noise
from fedsim.splitnn.features import Features
from fedsim.splitnn.neighbours import Neighbours
from fedsim.training import NeighbourList, TrainingResult, train_with

log = logging.getLogger("fedsim.parties")


def train_remote_ladder(
    post: PartyContext, results: ResultStore, rungs: Sequence[Rung], seeds: int, unit: str, tell: MessageCallback
) -> Ladder:
    """The ladder of a trained job, with the secondaries where they are."""
    post.connection.serves_predictions = True
    torch.set_num_threads(post.job.training.threads)
    table = read_party_data(post.job, post.own)
    reception = post.receive(post.secondaries)
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
