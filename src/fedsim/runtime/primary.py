"""The primary's process: fetches its links, trains with the remote secondaries and saves its part of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.config.job import Job
from fedsim.data.features import FeaturePreprocessor, FeatureRules, fit_preprocessor
from fedsim.data.splits import group_matching_records, group_split, random_split
from fedsim.errors import PeerError
from fedsim.linkage.private_linkage import PrivateLinks, load_private_links, save_private_links
from fedsim.protocol.codec import offer_digest
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import Farewell, Party, Phase, Role
from fedsim.protocol.roles.primary import EncodedQueries, RemoteSecondary, fetch_partners, send_finish
from fedsim.protocol.session import PeerRestarted, Session, StopSignal, close_sessions
from fedsim.runtime.party_context import FAILURE_NOTICE_SECONDS, PartyContext, ReconnectingPeer, software_versions
from fedsim.runtime.party_data import PartyData, class_labels, numeric_labels, read_party_data
from fedsim.runtime.record_run import CompletedTraining, GateSummary, RunProgressHook, save_run_record, summarise_gates
from fedsim.runtime.run_store import TRAINED_MODEL, RunStore, load_cut_noise
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.storage.digest import arrays_digest
from fedsim.training import Config, Hook, NeighbourList, PrimaryData, TaskType, TrainingResult, train, train_with
from fedsim.training.config import ConfigOverrides, build_config
from fedsim.training.labels import target_state
from fedsim.types import Integers, Split

log = logging.getLogger("fedsim.parties")

SOLO_MODEL = "solo"
FAREWELL_SECONDS = 4.0


@dataclass(frozen=True, eq=False)
class PreparedPrimary:
    """The primary's own records, ready to train."""

    data: PrimaryData
    preparation: FeaturePreprocessor
    classes: list[Any]
    split: Split


@dataclass(frozen=True)
class TrainingOutcome:
    """How the job ended at the primary."""

    metrics: dict[str, dict[str, float]]
    best_epoch: int
    epochs: int


def run_primary(post: PartyContext, hooks: Sequence[Hook] = ()) -> TrainingOutcome:
    """Link, train, evaluate, save, and tell everybody that all is done."""
    torch.set_num_threads(post.job.training.threads)
    post.connection.note("computes with", software_versions())
    keep, coordinator = RunStore(post.folder, post.job), ReconnectingPeer(lambda: post.dial(Role.COORDINATOR))
    if keep.has_weights(TRAINED_MODEL):
        log.info("job '%s' was trained before", post.job.name)
        reception = post.receive(post.secondaries)
        _notify_coordinator(coordinator, post)
        reception.dismiss(Farewell(), FAREWELL_SECONDS)  # those who did not hear it dial every two seconds
        return load_outcome(keep)
    reception = post.receive(post.secondaries)
    coordinator.session()  # it compares jobs and releases; no data is touched before
    post.progress.enter(Phase.LINK.value)
    table = read_party_data(post.job, post.own)
    prepared = prepare_primary(table, post)
    lists = {
        party: _load_or_fetch_links(post, keep, coordinator, table, party, prepared.split) for party in post.secondaries
    }
    reaches = {party: ReconnectingPeer(_session_opener(reception.session_with, party)) for party in post.secondaries}
    result, gates = _train(post, prepared, lists, reaches, (*hooks, RunProgressHook(post.progress)))
    links = {party.name: delivery for party, delivery in lists.items()}
    save_run_record(post.folder, CompletedTraining(post.job, table, prepared, links, result, gates), post.progress)
    if post.own.serving.when_partner_is_away == "solo":
        train_solo(post, keep, prepared)
    _save_model(keep, prepared, result)  # the last of all parts: where it is, nothing else is missing
    _notify_coordinator(coordinator, post)
    close_sessions(post.sessions(), Farewell())
    return load_outcome(keep)


def prepare_primary(table: PartyData, post: PartyContext) -> PreparedPrimary:
    """Split the records, and learn from the training rows how columns become numbers."""
    party, job = str(post.connection.party), post.job
    labels, classes, goal = _read_labels(table, job, party)
    rng = RandomSource(job.seed, post.own.name).rng("split")
    split = (
        group_split(identifier_groups(table, job), rng) if job.task.split == "group" else random_split(len(table), rng)
    )
    frame = table.features()
    preparation = fit_preprocessor(
        frame,
        party=party,
        rows=split.train,
        rules=FeatureRules(kinds=post.own.features.kinds),
        label=table.columns.label,
    )
    return PreparedPrimary(
        PrimaryData(to_features(preparation, frame), labels, goal, post.own.name), preparation, classes, split
    )


def to_features(preparation: FeaturePreprocessor, frame: Any) -> Features:
    """Records as the networks take them."""
    return Features.of(preparation.apply(frame))


def to_neighbours(links: PrivateLinks) -> Neighbours:
    """Links as the networks take them."""
    return Neighbours(links.partner.astype(np.int64), links.similarity.astype(np.float64))


def training_config(job: Job, method: str | None = None) -> Config:
    """The training a job describes."""
    training = job.training
    wanted = ConfigOverrides(training.epochs, training.batch_size, training.learning_rate, training.patience)
    config = build_config(training.preset, method or training.method, wanted, seed=job.seed, device="cpu")
    return replace(config, save_steps=training.checkpoint_steps)


@dataclass(frozen=True, eq=False)
class OwnerStopHook(Hook):
    """Hears the owner's wish to stop where no partner is waited for."""

    stop_signal: StopSignal

    def stepped(self, step: int) -> None:
        self.stop_signal.check_interrupt()


def train_solo(post: PartyContext, keep: RunStore, prepared: PreparedPrimary) -> None:
    """Train the primary's own features alone, for the hours in which a partner is away."""
    config, hooks = training_config(post.job, "solo"), [OwnerStopHook(post.connection.stop_signal)]
    result = train(prepared.data, [], prepared.split, config, hooks=hooks)
    keep.save_weights(SOLO_MODEL, result.model.primary.model.network.state_dict(), _model_facts(prepared, result))


def _read_labels(table: PartyData, job: Job, party: str) -> tuple[NDArray[Any], list[Any], TaskType]:
    if job.task.kind == "classification":
        return *class_labels(table.label(), party), TaskType.CLASSES
    return numeric_labels(table.label(), party), [], TaskType.NUMBERS


def identifier_groups(table: PartyData, job: Job) -> Integers:
    """Records that no secondary's linkage can tell apart stay together."""
    written = [table.identifiers(name) for name in job.secondaries]
    compared = [table.compared(job, name) for name in job.secondaries]
    return group_matching_records(written, compared, party=str(table.own.party))


def _session_opener(session_with: Callable[[Party], Session], party: Party) -> Callable[[], Session]:
    return lambda: session_with(party)


def _load_or_fetch_links(
    post: PartyContext, keep: RunStore, coordinator: ReconnectingPeer, table: PartyData, party: Party, split: Split
) -> PrivateLinks:
    """The partners of every record, from the coordinator or from what it sent before."""
    encoded = keep.encoded(table, party.name)
    counted = np.zeros(len(encoded), dtype=bool)
    counted[split.train] = True
    digest = offer_digest(encoded, counted.astype(np.uint8))
    path = post.folder / "lists" / f"{party.name}.safetensors"
    kept = load_private_links(path) if path.is_file() else None
    have = "" if kept is None else arrays_digest(kept.partner, kept.similarity)
    question = EncodedQueries(party.name, encoded, counted, digest)
    answer = coordinator.ask(lambda session: fetch_partners(session, question, have))
    if answer is None and kept is not None:
        return kept
    if answer is None:
        raise PeerError(f"{coordinator.session().peer} says that nothing has changed, but nothing was there before")
    delivery = PrivateLinks(np.array(answer.partner), np.array(answer.similarity))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_private_links(delivery, path)
    return delivery


def _train(
    post: PartyContext,
    prepared: PreparedPrimary,
    lists: dict[Party, PrivateLinks],
    reaches: dict[Party, ReconnectingPeer],
    hooks: Sequence[Hook],
) -> tuple[TrainingResult, GateSummary]:
    """Train; whenever a secondary starts anew, all go back to the last common checkpoint."""
    config, form = training_config(post.job), wire_format(post.job.training.wire)
    noise = load_cut_noise(post.job.protection.gradients, post.folder)
    while True:
        try:
            holders = {party: RemoteSecondary(reach.session(), form, noise=noise) for party, reach in reaches.items()}
            held = [NeighbourList(to_neighbours(links), (holders[party],)) for party, links in lists.items()]
            result = train_with(
                prepared.data, held, prepared.split, config, folder=post.folder / "checkpoints", hooks=hooks
            )
            gates = summarise_gates(result, prepared, [part.neighbours for part in held])
            for holder in holders.values():
                holder.finish()
        except PeerRestarted as restarted:
            log.warning("%s; all go on from the last common checkpoint", restarted)
            post.connection.note("restarted", {"peer": str(restarted.peer)})
        else:
            return result, gates


def _save_model(keep: RunStore, prepared: PreparedPrimary, result: TrainingResult) -> None:
    keep.save_weights(TRAINED_MODEL, result.model.primary.model.network.state_dict(), _model_facts(prepared, result))


def _model_facts(prepared: PreparedPrimary, result: TrainingResult) -> dict[str, Any]:
    return {
        "preparation": prepared.preparation.to_json(),
        "target": target_state(result.model.target),
        "classes": prepared.classes,
        "metrics": result.metrics,
        "history": [asdict(epoch) for epoch in result.history],
        "best_epoch": result.best.number,
    }


def load_outcome(keep: RunStore) -> TrainingOutcome:
    """How a training that has ended went."""
    facts = keep.load_weights(TRAINED_MODEL)[1]
    return TrainingOutcome(facts["metrics"], facts["best_epoch"], len(facts["history"]))


def _notify_coordinator(coordinator: ReconnectingPeer, post: PartyContext) -> None:
    """A coordinator that has not heard of the end is told; one that has gone has heard."""
    post.connection.wait_seconds = FAILURE_NOTICE_SECONDS
    try:
        coordinator.ask(send_finish)
    except PeerError:
        log.info("the coordinator has gone before")
