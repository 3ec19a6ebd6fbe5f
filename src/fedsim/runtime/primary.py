"""The primary's process: fetches its links, trains with the remote secondaries and saves its part of the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedsim.config.job import Job
from fedsim.data.features import FeaturePreprocessor
from fedsim.data.splits import group_split, random_split
from fedsim.errors import PeerError
from fedsim.linkage.private_linkage import PrivateLinks, load_private_links, save_private_links
from fedsim.protocol.codec import offer_digest
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import Farewell, Party, Phase, Role
from fedsim.protocol.roles.primary import EncodedQueries, RemoteSecondary, fetch_partners, send_finish
from fedsim.protocol.session import PeerRestarted, StopSignal, close_sessions
from fedsim.runtime.party_context import FAILURE_NOTICE_SECONDS, PartyContext, ReconnectingPeer, software_versions
from fedsim.runtime.party_data import PartyData, read_party_data
from fedsim.runtime.record_run import CompletedTraining, GateSummary, RunProgressHook, save_run_record, summarise_gates
from fedsim.runtime.run_store import TRAINED_MODEL, RunStore, load_cut_noise
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.storage.digest import arrays_digest
from fedsim.training import Config, Hook, NeighbourList, PrimaryData, TaskType, TrainingResult, train, train_with
from fedsim.training.config import ConfigOverrides, build_config
from fedsim.training.labels import target_state
from fedsim.types import Split

log = logging.getLogger("fedsim.parties")

SOLO_MODEL = "solo"
FAREWELL_SECONDS = 4.0  # a secondary that missed the farewell reconnects every two seconds


@dataclass(frozen=True, eq=False)
class PreparedPrimary:
    """The primary's records, ready for training."""

    data: PrimaryData
    preparation: FeaturePreprocessor
    classes: list[Any]
    split: Split


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of a job at the primary."""

    metrics: dict[str, dict[str, float]]
    best_epoch: int
    epochs: int


def run_primary(context: PartyContext, hooks: Sequence[Hook] = ()) -> TrainingOutcome:
    """Link, train, evaluate and save, then tell all parties that the job is done."""
    torch.set_num_threads(context.job.training.threads)
    context.connection.record_event("computes with", software_versions())
    store = RunStore(context.folder, context.job)
    coordinator = ReconnectingPeer(lambda: context.dial(Role.COORDINATOR))
    acceptor = context.listen(context.secondaries)
    if store.has_weights(TRAINED_MODEL):
        log.info("job '%s' is already trained", context.job.name)
        _notify_coordinator(coordinator, context)
        acceptor.send_last(Farewell(), FAREWELL_SECONDS)
        return load_outcome(store)
    coordinator.session()  # compares job and release, before any data is read
    context.progress.enter(Phase.LINK.value)
    table = read_party_data(context.job, context.party_file)
    prepared = prepare_primary(table, context)
    lists = {
        party: _load_or_fetch_links(store, coordinator, table, party, prepared.split) for party in context.secondaries
    }
    peers = {party: ReconnectingPeer(partial(acceptor.session_with, party)) for party in context.secondaries}
    result, gates = _train(context, prepared, lists, peers, (*hooks, RunProgressHook(context.progress)))
    links = {party.name: found for party, found in lists.items()}
    completed = CompletedTraining(context.job, table, prepared, links, result, gates)
    save_run_record(context.folder, completed, context.progress)
    if context.party_file.serving.when_partner_is_away == "solo":
        train_solo(context, store, prepared)
    _save_model(store, TRAINED_MODEL, prepared, result)  # last: where it exists, nothing else is missing
    _notify_coordinator(coordinator, context)
    close_sessions(context.sessions(), Farewell())
    return load_outcome(store)


def prepare_primary(table: PartyData, context: PartyContext) -> PreparedPrimary:
    """Split the records, and fit the preprocessing of features to the training rows."""
    job, name = context.job, context.party_file.name
    rng = RandomSource(job.seed, name).rng("split")
    split = group_split(table.groups(), rng) if job.task.split == "group" else random_split(len(table), rng)
    labels, classes = table.labels()
    task = TaskType.CLASSES if job.task.kind == "classification" else TaskType.NUMBERS
    preparation = table.fit_features(split.train)
    data = PrimaryData(to_features(preparation, table.features()), labels, task, name)
    return PreparedPrimary(data, preparation, classes, split)


def to_features(preparation: FeaturePreprocessor, frame: Any) -> Features:
    """Convert records to the input of a network."""
    return Features.of(preparation.apply(frame))


def to_neighbours(links: PrivateLinks) -> Neighbours:
    """Convert links to the input of a network."""
    return Neighbours(links.partner.astype(np.int64), links.similarity.astype(np.float64))


def training_config(job: Job, method: str | None = None) -> Config:
    """Return the training configuration of a job."""
    training = job.training
    overrides = ConfigOverrides(training.epochs, training.batch_size, training.learning_rate, training.patience)
    config = build_config(training.preset, method or training.method, overrides, seed=job.seed, device="cpu")
    return replace(config, save_steps=training.checkpoint_steps)


@dataclass(frozen=True, eq=False)
class OwnerStopHook(Hook):
    """Stops a training without partners on the owner's request."""

    stop_signal: StopSignal

    def stepped(self, step: int) -> None:
        self.stop_signal.check_interrupt()


def train_solo(context: PartyContext, store: RunStore, prepared: PreparedPrimary) -> None:
    """Train on the primary's features alone, for predictions while a partner is unreachable."""
    config, hooks = training_config(context.job, "solo"), [OwnerStopHook(context.connection.stop_signal)]
    _save_model(store, SOLO_MODEL, prepared, train(prepared.data, [], prepared.split, config, hooks=hooks))


def _load_or_fetch_links(
    store: RunStore, coordinator: ReconnectingPeer, table: PartyData, party: Party, split: Split
) -> PrivateLinks:
    """Return the partners of every record, from the coordinator or from what it sent before."""
    encoded = store.encoded(table, party.name)
    counted = np.zeros(len(encoded), dtype=bool)
    counted[split.train] = True
    path = store.folder / "lists" / f"{party.name}.safetensors"
    saved = load_private_links(path) if path.is_file() else None
    have = "" if saved is None else arrays_digest(saved.partner, saved.similarity)
    queries = EncodedQueries(party.name, encoded, counted, offer_digest(encoded, counted.astype(np.uint8)))
    answer = coordinator.ask(lambda session: fetch_partners(session, queries, have))
    if answer is None and saved is not None:
        return saved
    if answer is None:
        raise PeerError("the coordinator reports no change, but sent no links before", code="unexpected-reply")
    links = PrivateLinks(np.array(answer.partner), np.array(answer.similarity))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_private_links(links, path)
    return links


def _train(
    context: PartyContext,
    prepared: PreparedPrimary,
    lists: dict[Party, PrivateLinks],
    peers: dict[Party, ReconnectingPeer],
    hooks: Sequence[Hook],
) -> tuple[TrainingResult, GateSummary]:
    """Train; whenever a secondary restarts, all parties go back to the last common checkpoint."""
    job, checkpoints = context.job, context.folder / "checkpoints"
    config, form = training_config(job), wire_format(job.training.wire)
    noise = load_cut_noise(job.protection.gradients, context.folder)
    while True:
        try:
            remotes = {party: RemoteSecondary(peer.session(), form, noise=noise) for party, peer in peers.items()}
            neighbours = [NeighbourList(to_neighbours(links), (remotes[party],)) for party, links in lists.items()]
            result = train_with(prepared.data, neighbours, prepared.split, config, folder=checkpoints, hooks=hooks)
            gates = summarise_gates(result, prepared, [part.neighbours for part in neighbours])
            for remote in remotes.values():
                remote.finish()
        except PeerRestarted as restarted:
            log.warning("%s; resuming from the last common checkpoint", restarted)
            context.connection.record_event("restarted", {"peer": str(restarted.peer)})
        else:
            return result, gates


def _save_model(store: RunStore, name: str, prepared: PreparedPrimary, result: TrainingResult) -> None:
    facts = {
        "preparation": prepared.preparation.to_json(),
        "target": target_state(result.model.target),
        "classes": prepared.classes,
        "metrics": result.metrics,
        "history": [asdict(epoch) for epoch in result.history],
        "best_epoch": result.best.number,
    }
    store.save_weights(name, result.model.primary.model.network.state_dict(), facts)


def load_outcome(store: RunStore) -> TrainingOutcome:
    """Load the outcome of a completed training."""
    facts = store.load_weights(TRAINED_MODEL)[1]
    return TrainingOutcome(facts["metrics"], facts["best_epoch"], len(facts["history"]))


def _notify_coordinator(coordinator: ReconnectingPeer, context: PartyContext) -> None:
    """Tell the coordinator that training is complete; one that is gone already knows."""
    context.connection.wait_seconds = FAILURE_NOTICE_SECONDS
    try:
        coordinator.ask(send_finish)
    except PeerError:
        log.info("the coordinator has already exited")
