"""The rungs of a ladder with the secondaries where they are: their tables stay there, and their owners allow it.

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

from fedsim.data.typed import typed
from fedsim.errors import FileError
from fedsim.experiment.arrays import Arrays, Linked
from fedsim.experiment.choices import config_of
from fedsim.experiment.job_cases import job_words, plain_features
from fedsim.experiment.ladder import Ladder, climbed
from fedsim.experiment.own_identifiers import identifier_features
from fedsim.experiment.results import Results
from fedsim.experiment.run import Tell, Trained, alone, links_of, outcome_of, primary_of, shuffled_order, trained
from fedsim.experiment.rung import Rung
from fedsim.linkage.blind_file import load_delivery
from fedsim.party.own_table import OwnTable, read_own_table
from fedsim.party.post import Post
from fedsim.party.primary import Prepared, own_groups, prepare
from fedsim.party.protecting import cut_noise
from fedsim.party.reach import Reach
from fedsim.protocol.messages import Farewell
from fedsim.protocol.roles.primary import RemoteSecondary, Study
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.tensors import form_named
from fedsim.protocol.trouble import tell as tell_all
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.training import HeldList, Result, train_with

log = logging.getLogger("fedsim.parties")


def climbed_afar(post: Post, results: Results, rungs: Sequence[Rung], seeds: int, unit: str, tell: Tell) -> Ladder:
    """The ladder of a trained job, with the secondaries where they are."""
    post.station.staying = True
    torch.set_num_threads(post.job.training.threads)
    table = read_own_table(post.job, post.own)
    reception = post.receive(post.secondaries)
    reaches = {party.name: Reach(partial(reception.session_with, party)) for party in post.secondaries}
    ladder = climbed(cases_afar(post, table, seeds, unit), rungs, results, tell, Afar(post, reaches).trained)
    tell_all(post.sessions(), Farewell())
    return ladder


def cases_afar(post: Post, table: OwnTable, seeds: int, unit: str = "") -> Iterator[Arrays]:
    """The job's own split and links, for every seed of training; features of the secondaries are not among them."""
    prepared = prepare(table, post)
    linked = tuple(_linked(post, name, len(table)) for name in post.job.secondaries)
    for seed in range(seeds):
        yield _arrays(post, table, prepared, linked, post.job.seed + seed, unit)


@dataclass(frozen=True, eq=False)
class Afar:
    """Trains a rung with the secondaries of these conversations."""

    post: Post
    reaches: Mapping[str, Reach]

    def trained(self, rung: Rung, arrays: Arrays) -> Trained:
        """One training; whenever a secondary starts anew, it begins again."""
        self.post.station.alarm.check()
        if alone(rung):
            return trained(rung, arrays)
        while True:
            try:
                return outcome_of(self._result(rung, arrays))
            except PeerRestarted as restarted:
                log.warning("%s; this study begins again", restarted)

    def _result(self, rung: Rung, arrays: Arrays) -> Result:
        job, seed = self.post.job, arrays.about["seed"]
        study = Study(seed, placebo=rung.partner == "placebo")
        noise, form = cut_noise(job.protection.gradients, self.post.folder), form_named(job.training.wire)
        others = shuffled_order(rung, arrays)
        held = []
        for linked in arrays.secondaries:
            holder = RemoteSecondary(self.reaches[linked.name].session(), form, noise=noise, study=study)
            held.append(HeldList(Neighbours(*links_of(rung, linked, others)), (holder,)))
        return train_with(primary_of(rung, arrays), held, arrays.split, config_of(rung, seed, device="cpu"))


def _arrays(
    post: Post, table: OwnTable, prepared: Prepared, linked: tuple[Linked, ...], seed: int, unit: str
) -> Arrays:
    job, missing = post.job, table.own.data.missing if table.own.data else ()
    identifiers = typed(table.frame.select(table.columns.linking), missing)
    return Arrays(
        primary=plain_features(table, prepared.split.train),
        own=identifier_features(identifiers, prepared.split.train),
        secondaries=linked,
        labels=prepared.data.labels,
        groups=own_groups(table, job),
        split=prepared.split,
        about={**job_words(job, table, unit), "split": job.task.split, "seed": seed},
    )


def _linked(post: Post, name: str, n_records: int) -> Linked:
    """The links that the coordinator delivered for training; the partner's features are elsewhere."""
    path = post.folder / "lists" / f"{name}.safetensors"
    if not path.is_file():
        raise FileError(f"no links of job '{post.job.name}' lie in {post.folder}; train it first")
    found = load_delivery(path)
    nowhere = np.full(n_records, -1)
    return Linked(
        Features(np.zeros((0, 0), np.float32)), np.arange(n_records), found.partner, found.similarity, nowhere, name
    )
