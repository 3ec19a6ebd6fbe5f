"""The secondary's process: encodes, learns its row order, and answers the primary during training, comparison runs and prediction."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import safetensors.numpy
import torch
from safetensors import SafetensorError

from fedsim.config.job import Job
from fedsim.data.features import FeaturePreprocessor, FeatureRules, fit_preprocessor
from fedsim.errors import FileError, InputError, PeerError, PolicyError
from fedsim.linkage.files import load_encoded
from fedsim.protocol.codec import offer_digest
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import Begin, Party, Role
from fedsim.protocol.roles.secondary import RowMapping, SecondaryResponder, fetch_row_mapping
from fedsim.protocol.session import PeerRestarted, abort_session
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer, software_versions
from fedsim.runtime.party_data import PartyData, read_party_data
from fedsim.runtime.run_store import SECRET_FILE, TRAINED_MODEL, RunStore, derive_seed, load_cut_noise, protect_features
from fedsim.splitnn.layers import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import (
    LocalSecondary,
    SecondaryConfig,
    restore_secondary,
    secondary_config,
    start_secondary,
)
from fedsim.storage.files import atomic_write
from fedsim.storage.secrets import load_or_create_secret

# Trainings to compare with, beside the job's own: a secondary takes part in as many as its owner allows


@dataclass(frozen=True)
class ComparisonRuns:
    """Counts them in the run folder, through all processes."""

    party: Party
    path: Path
    most: int

    def begin(self, features: Features, below: SecondaryConfig, asked: Begin) -> LocalSecondary:
        """A network of the seed in ``below``, on shuffled rows for a placebo; no checkpoint is kept."""
        self._count()
        name = self.party.name
        if asked.placebo:
            features = features.take(RandomSource(below.seed, name).rng("placebo").permutation(len(features)))
        return start_secondary(name, features, below, total_steps=asked.total_steps)

    def _count(self) -> None:
        done = self._done()
        if done >= self.most:
            raise PolicyError(
                f"{self.party} takes part in {self.most:,} studies and has seen {done:,}; its owner may raise "
                "max_studies in its [policy]"
            )
        with atomic_write(self.path) as part:
            part.write_text(str(done + 1))

    def _done(self) -> int:
        try:
            return int(self.path.read_text()) if self.path.is_file() else 0
        except (OSError, ValueError):
            raise FileError(
                f"{self.path} holds no number of studies; write the one you know of, or remove it"
            ) from None


# The secondary's process: encodes, learns which rows its pseudonyms stand for, and answers the primary


log = logging.getLogger("fedsim.parties")

ENDED_FILE = "ended"
GRACE_SECONDS = 120.0  # once our part is saved, how long we wait for a primary that has gone
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.5, 60.0  # seconds before a primary that gave us trouble is dialled again; doubles


def run_secondary(post: PartyContext, *, stay: bool = False) -> None:
    """Take part until the primary says farewell; ``stay`` goes on for predictions."""
    torch.set_num_threads(post.job.training.threads)
    post.connection.note("computes with", software_versions())
    keep, coordinator = RunStore(post.folder, post.job), ReconnectingPeer(lambda: post.dial(Role.COORDINATOR))
    if not keep.has_weights(TRAINED_MODEL):
        coordinator.session()  # it compares jobs and releases; no data is touched before
    table = read_party_data(post.job, post.own)
    order = _load_or_fetch_order(post, table, keep, coordinator)
    answers = _SecondaryHandlers(post, keep, order, _prepare_features(post, table, keep), stay)
    if stay:
        post.connection.wait_seconds, post.connection.serves_predictions = float("inf"), keep.has_weights(TRAINED_MODEL)
    elif keep.has_weights(TRAINED_MODEL):
        _shorten_wait(post)
    _serve_primary(post, keep, answers.below_the_cut(), stay)


def _serve_primary(post: PartyContext, keep: RunStore, below: SecondaryResponder, stay: bool) -> None:
    """Answer the primary through all its restarts, until it says farewell."""
    pause, said = RETRY_SECONDS, ""
    while True:
        try:
            if _hold_session(post, below) and not stay:
                return
            pause, said = RETRY_SECONDS, ""
        except PeerRestarted as restarted:
            log.info("%s; it goes on from the last common checkpoint", restarted)
        except PeerError as fault:
            if post.connection.stop_signal.rung or not (
                post.connection.serves_predictions or keep.has_weights(TRAINED_MODEL)
            ):
                raise
            if not post.connection.serves_predictions:
                log.info("the primary has gone; our part was saved before")
                return
            if str(fault) != said:
                said = str(fault)
                log.info("%s; waiting for the next question", fault)
            post.connection.stop_signal.wait(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)


def _shorten_wait(post: PartyContext) -> None:
    """From now on a primary that has gone, or that goes in the middle of a conversation, is not waited for as long."""
    post.connection.wait_seconds = min(post.connection.wait_seconds, GRACE_SECONDS)


def _hold_session(post: PartyContext, below: SecondaryResponder) -> bool:
    """One conversation; whatever ends it here is told to the primary, who would wait for an answer."""
    session = post.dial(Role.PRIMARY)
    try:
        return below.talk(session)
    except PeerError as fault:
        if post.connection.serves_predictions:
            abort_session(session, fault)
        raise


def _load_or_fetch_order(
    post: PartyContext, table: PartyData, keep: RunStore, coordinator: ReconnectingPeer
) -> RowMapping:
    """Which row each pseudonym stands for, from the coordinator or from what it said before."""
    encoded = keep.encoded(table, post.own.name)
    path = post.folder / "order.safetensors"
    kept = _read_order(path)
    if kept is not None and keep.has_weights(TRAINED_MODEL):
        if keep.load_weights(TRAINED_MODEL)[1]["identifiers"] != offer_digest(encoded):
            raise InputError(
                f"the identifiers of {post.own.party} have changed since the model was trained, and rows would be "
                "taken for others; bring back the table of then, or train a new job"
            )
        return kept  # it goes with the weights; the coordinator may have gone by now
    have = "" if kept is None else kept.digest
    order = coordinator.ask(lambda session: fetch_row_mapping(session, encoded, offer_digest(encoded), have))
    if order is None and kept is not None:
        return kept
    if order is None:
        raise PeerError("the coordinator says that nothing has changed, but nothing was there before")
    with atomic_write(path, mode=0o600) as file:
        file.write_bytes(safetensors.numpy.save({"rows": order.rows, "key": order.key}))
    return order


def _read_order(path: Path) -> RowMapping | None:
    """What was kept; a damaged file is as good as none, for the coordinator sends it again."""
    try:
        found = safetensors.numpy.load(path.read_bytes())
        return RowMapping(found["rows"], found["key"])
    except (OSError, KeyError, SafetensorError):
        return None


def _prepare_features(post: PartyContext, table: PartyData, keep: RunStore) -> tuple[FeaturePreprocessor, Features]:
    """Features in our own order, and how they were prepared."""
    frame = table.features()
    if keep.has_weights(TRAINED_MODEL):
        preparation = FeaturePreprocessor.from_json(keep.load_weights(TRAINED_MODEL)[1]["preparation"])
    else:
        rules = FeatureRules(kinds=table.own.features.kinds)
        preparation = fit_preprocessor(frame, party=str(table.own.party), rules=rules)
    return preparation, protect_features(Features.of(preparation.apply(frame)), frame, post.job.protection, post.folder)


@dataclass(frozen=True, eq=False)
class _SecondaryHandlers:
    """What the messages of the primary set going."""

    post: PartyContext
    keep: RunStore
    order: RowMapping
    prepared: tuple[FeaturePreprocessor, Features]
    stay: bool

    def below_the_cut(self) -> SecondaryResponder:
        below = self._own(secondary_model_spec(self.post.job))
        return SecondaryResponder(
            width=below.local.build(self.prepared[1]).width,
            order=self.order,
            start=partial(self._start, below),
            trained=partial(self._trained, below),
            finish=self._finish,
            farewell=self._farewell,
            form=wire_format(self.post.job.training.wire),
            noise=load_cut_noise(self.post.job.protection.activations, self.post.folder),
        )

    def _own(self, below: SecondaryConfig) -> SecondaryConfig:
        """With chance of our own: who knew our first weights could read the features off the first activations."""
        return replace(below, seed=derive_seed(load_or_create_secret(self.post.folder / SECRET_FILE), below.seed))

    def _start(self, below: SecondaryConfig, asked: Begin) -> LocalSecondary:
        own, folder, features = self.post.own, self.post.folder, self.prepared[1]
        if asked.study:
            studies = ComparisonRuns(own.party, folder / "studies", own.policy.max_studies)
            party = studies.begin(
                features, self._own(replace(secondary_model_spec(self.post.job), seed=asked.seed)), asked
            )
            self.post.connection.note("study", {"seed": asked.seed, "placebo": asked.placebo})
            return party
        if (folder / ENDED_FILE).is_file():
            raise PolicyError(f"{own.party} has ended the training of this job; another one is a new job, or a study")
        steps = asked.total_steps
        self.post.connection.note("training", {"steps": steps})
        return start_secondary(own.name, features, below, total_steps=steps, folder=folder / "checkpoints")

    def _trained(self, below: SecondaryConfig) -> LocalSecondary:
        return restore_secondary(self.post.own.name, self.prepared[1], below, self.keep.load_weights(TRAINED_MODEL)[0])

    def _finish(self, party: LocalSecondary) -> None:
        encoded = load_encoded(self.keep.encoded_path(self.post.own.name))
        facts = {"preparation": self.prepared[0].to_json(), "identifiers": offer_digest(encoded)}
        self.keep.save_weights(TRAINED_MODEL, party.model.network.state_dict(), facts)
        self.post.connection.note("saved", {"what": "our part of the model"})
        if self.stay:
            self.post.connection.serves_predictions = True
        else:
            _shorten_wait(self.post)

    def _farewell(self) -> None:
        """The primary has its part as well: from now on nothing is trained again."""
        if self.keep.has_weights(TRAINED_MODEL):
            with atomic_write(self.post.folder / ENDED_FILE) as file:
                file.write_text("")


def secondary_model_spec(job: Job) -> SecondaryConfig:
    """What the job says to all secondaries."""
    training = job.training
    activations = job.protection.activations
    clip = None if activations is None else activations.clip
    return secondary_config(
        training.preset, training.method, seed=job.seed, learning_rate=training.learning_rate, clip=clip
    )
