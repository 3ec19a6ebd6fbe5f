"""The secondary's process: encodes, learns which rows its pseudonyms stand for, and answers the primary."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import safetensors.numpy
import torch
from safetensors import SafetensorError

from fedsim.data.features import Preparation, Rules, fit_preparation
from fedsim.errors import InputError, PeerError, PolicyError
from fedsim.linkage.encoded_file import load_encoded
from fedsim.linkage.secret_file import own_secret
from fedsim.linkage.whole_file import whole_file
from fedsim.party.feature_noise import guarded_features
from fedsim.party.job import Job
from fedsim.party.keeping import PART, Keep
from fedsim.party.own_table import OwnTable, read_own_table
from fedsim.party.post import Post
from fedsim.party.protecting import SECRET, cut_noise, secret_seed
from fedsim.party.reach import Reach
from fedsim.party.studies import Studies
from fedsim.party.versions import versions_here
from fedsim.protocol.digests import table_digest
from fedsim.protocol.messages import Begin
from fedsim.protocol.parties import Role
from fedsim.protocol.roles.secondary import BelowTheCut, Order, fetch_order
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.tensors import form_named
from fedsim.protocol.trouble import part
from fedsim.splitnn.below import Below, below_named, restored_secondary, start_secondary
from fedsim.splitnn.features import Features
from fedsim.splitnn.secondary import LocalSecondary

log = logging.getLogger("fedsim.parties")

ENDED = "ended"
GRACE_SECONDS = 120.0  # once our part is saved, how long we wait for a primary that has gone
PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds before a primary that gave us trouble is dialled again; doubles


def run_secondary(post: Post, *, stay: bool = False) -> None:
    """Take part until the primary says farewell; ``stay`` goes on for predictions."""
    torch.set_num_threads(post.job.training.threads)
    post.station.note("computes with", versions_here())
    keep, coordinator = Keep(post.folder, post.job), Reach(lambda: post.dial(Role.COORDINATOR))
    if not keep.has_part(PART):
        coordinator.session()  # it compares jobs and releases; no data is touched before
    table = read_own_table(post.job, post.own)
    order = _order(post, table, keep, coordinator)
    answers = _Answers(post, keep, order, _features(post, table, keep), stay)
    if stay:
        post.station.wait_seconds, post.station.staying = float("inf"), keep.has_part(PART)
    elif keep.has_part(PART):
        _grant_grace(post)
    _answer(post, keep, answers.below_the_cut(), stay)


def _answer(post: Post, keep: Keep, below: BelowTheCut, stay: bool) -> None:
    """Answer the primary through all its restarts, until it says farewell."""
    pause, said = PAUSE, ""
    while True:
        try:
            if _talked(post, below) and not stay:
                return
            pause, said = PAUSE, ""
        except PeerRestarted as restarted:
            log.info("%s; it goes on from the last common checkpoint", restarted)
        except PeerError as fault:
            if post.station.alarm.rung or not (post.station.staying or keep.has_part(PART)):
                raise
            if not post.station.staying:
                log.info("the primary has gone; our part was saved before")
                return
            if str(fault) != said:
                said = str(fault)
                log.info("%s; waiting for the next question", fault)
            post.station.alarm.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _grant_grace(post: Post) -> None:
    """From now on a primary that has gone, or that goes in the middle of a conversation, is not waited for as long."""
    post.station.wait_seconds = min(post.station.wait_seconds, GRACE_SECONDS)


def _talked(post: Post, below: BelowTheCut) -> bool:
    """One conversation; whatever ends it here is told to the primary, who would wait for an answer."""
    session = post.dial(Role.PRIMARY)
    try:
        return below.talk(session)
    except PeerError as fault:
        if post.station.staying:
            part(session, fault)
        raise


def _order(post: Post, table: OwnTable, keep: Keep, coordinator: Reach) -> Order:
    """Which row each pseudonym stands for, from the coordinator or from what it said before."""
    encoded = keep.encoded(table, post.own.name)
    path = post.folder / "order.safetensors"
    kept = _read_order(path)
    if kept is not None and keep.has_part(PART):
        if keep.load_part(PART)[1]["identifiers"] != table_digest(encoded):
            raise InputError(
                f"the identifiers of {post.own.party} have changed since the model was trained, and rows would be "
                "taken for others; bring back the table of then, or train a new job"
            )
        return kept  # it goes with the weights; the coordinator may have gone by now
    have = "" if kept is None else kept.digest
    order = coordinator.ask(lambda session: fetch_order(session, encoded, table_digest(encoded), have))
    if order is None and kept is not None:
        return kept
    if order is None:
        raise PeerError("the coordinator says that nothing has changed, but nothing was there before")
    with whole_file(path, mode=0o600) as file:
        file.write_bytes(safetensors.numpy.save({"rows": order.rows, "key": order.key}))
    return order


def _read_order(path: Path) -> Order | None:
    """What was kept; a damaged file is as good as none, for the coordinator sends it again."""
    try:
        found = safetensors.numpy.load(path.read_bytes())
        return Order(found["rows"], found["key"])
    except (OSError, KeyError, SafetensorError):
        return None


def _features(post: Post, table: OwnTable, keep: Keep) -> tuple[Preparation, Features]:
    """Features in our own order, and how they were prepared."""
    frame = table.features()
    if keep.has_part(PART):
        preparation = Preparation.from_json(keep.load_part(PART)[1]["preparation"])
    else:
        rules = Rules(kinds=table.own.features.kinds)
        preparation = fit_preparation(frame, party=str(table.own.party), rules=rules)
    return preparation, guarded_features(Features.of(preparation.apply(frame)), frame, post.job.protection, post.folder)


@dataclass(frozen=True, eq=False)
class _Answers:
    """What the messages of the primary set going."""

    post: Post
    keep: Keep
    order: Order
    prepared: tuple[Preparation, Features]
    stay: bool

    def below_the_cut(self) -> BelowTheCut:
        below = self._own(below_of(self.post.job))
        return BelowTheCut(
            width=below.local.build(self.prepared[1]).width,
            order=self.order,
            start=partial(self._start, below),
            trained=partial(self._trained, below),
            finish=self._finish,
            farewell=self._farewell,
            form=form_named(self.post.job.training.wire),
            noise=cut_noise(self.post.job.protection.activations, self.post.folder),
        )

    def _own(self, below: Below) -> Below:
        """With chance of our own: who knew our first weights could read the features off the first activations."""
        return replace(below, seed=secret_seed(own_secret(self.post.folder / SECRET), below.seed))

    def _start(self, below: Below, asked: Begin) -> LocalSecondary:
        own, folder, features = self.post.own, self.post.folder, self.prepared[1]
        if asked.study:
            studies = Studies(own.party, folder / "studies", own.policy.max_studies)
            party = studies.begin(features, self._own(replace(below_of(self.post.job), seed=asked.seed)), asked)
            self.post.station.note("study", {"seed": asked.seed, "placebo": asked.placebo})
            return party
        if (folder / ENDED).is_file():
            raise PolicyError(f"{own.party} has ended the training of this job; another one is a new job, or a study")
        steps = asked.total_steps
        self.post.station.note("training", {"steps": steps})
        return start_secondary(own.name, features, below, total_steps=steps, folder=folder / "checkpoints")

    def _trained(self, below: Below) -> LocalSecondary:
        return restored_secondary(self.post.own.name, self.prepared[1], below, self.keep.load_part(PART)[0])

    def _finish(self, party: LocalSecondary) -> None:
        encoded = load_encoded(self.keep.encoded_path(self.post.own.name))
        facts = {"preparation": self.prepared[0].to_json(), "identifiers": table_digest(encoded)}
        self.keep.save_part(PART, party.part.network.state_dict(), facts)
        self.post.station.note("saved", {"what": "our part of the model"})
        if self.stay:
            self.post.station.staying = True
        else:
            _grant_grace(self.post)

    def _farewell(self) -> None:
        """The primary has its part as well: from now on nothing is trained again."""
        if self.keep.has_part(PART):
            with whole_file(self.post.folder / ENDED) as file:
                file.write_text("")


def below_of(job: Job) -> Below:
    """What the job says to all secondaries."""
    training = job.training
    activations = job.protection.activations
    clip = None if activations is None else activations.clip
    return below_named(training.preset, seed=job.seed, learning_rate=training.learning_rate, clip=clip)
