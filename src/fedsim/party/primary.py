"""The primary's process: fetches its links, trains with the secondaries wherever they are, and saves its part."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.data.features import Preparation, Rules, fit_preparation
from fedsim.data.splits import alike_records, group_split, random_split
from fedsim.digest import arrays_digest
from fedsim.errors import PeerError
from fedsim.linkage.blind import Delivery
from fedsim.linkage.blind_file import load_delivery, save_delivery
from fedsim.party.job import Job
from fedsim.party.keeping import PART, Keep
from fedsim.party.own_table import OwnTable, classes_of, numbers_of, read_own_table
from fedsim.party.post import LAST_WORD_SECONDS, Post
from fedsim.party.protecting import cut_noise
from fedsim.party.reach import Reach
from fedsim.party.recording import Ended, Gates, Watching, keep_record, look_into
from fedsim.party.versions import versions_here
from fedsim.protocol.digests import table_digest
from fedsim.protocol.messages import Farewell, Phase
from fedsim.protocol.parties import Party, Role
from fedsim.protocol.roles.primary import RemoteSecondary, Table, fetch_partners, finish
from fedsim.protocol.session import PeerRestarted, Session
from fedsim.protocol.station import Alarm
from fedsim.protocol.tensors import form_named
from fedsim.protocol.trouble import tell
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.training import Config, Goal, HeldList, Hook, PrimaryData, Result, train, train_with
from fedsim.training.choices import Deviations, config_for
from fedsim.training.target_state import target_state
from fedsim.types import Integers, Split

log = logging.getLogger("fedsim.parties")

SOLO = "solo"
FAREWELL_SECONDS = 4.0


@dataclass(frozen=True, eq=False)
class Prepared:
    """The primary's own records, ready to train."""

    data: PrimaryData
    preparation: Preparation
    classes: list[Any]
    split: Split


@dataclass(frozen=True)
class Outcome:
    """How the job ended at the primary."""

    metrics: dict[str, dict[str, float]]
    best_epoch: int
    epochs: int


def run_primary(post: Post, hooks: Sequence[Hook] = ()) -> Outcome:
    """Link, train, evaluate, save, and tell everybody that all is done."""
    torch.set_num_threads(post.job.training.threads)
    post.station.note("computes with", versions_here())
    keep, coordinator = Keep(post.folder, post.job), Reach(lambda: post.dial(Role.COORDINATOR))
    if keep.has_part(PART):
        log.info("job '%s' was trained before", post.job.name)
        reception = post.receive(post.secondaries)
        _tell_coordinator(coordinator, post)
        reception.dismiss(Farewell(), FAREWELL_SECONDS)  # those who did not hear it dial every two seconds
        return outcome_of(keep)
    reception = post.receive(post.secondaries)
    coordinator.session()  # it compares jobs and releases; no data is touched before
    post.progress.enter(Phase.LINK.value)
    table = read_own_table(post.job, post.own)
    prepared = prepare(table, post)
    lists = {party: _links(post, keep, coordinator, table, party, prepared.split) for party in post.secondaries}
    reaches = {party: Reach(_opener(reception.session_with, party)) for party in post.secondaries}
    result, gates = _trained(post, prepared, lists, reaches, (*hooks, Watching(post.progress)))
    links = {party.name: delivery for party, delivery in lists.items()}
    keep_record(post.folder, Ended(post.job, table, prepared, links, result, gates), post.progress)
    if post.own.serving.when_partner_is_away == "solo":
        save_solo(post, keep, prepared)
    _save(keep, prepared, result)  # the last of all parts: where it is, nothing else is missing
    _tell_coordinator(coordinator, post)
    tell(post.sessions(), Farewell())
    return outcome_of(keep)


def prepare(table: OwnTable, post: Post) -> Prepared:
    """Split the records, and learn from the training rows how columns become numbers."""
    party, job = str(post.station.party), post.job
    labels, classes, goal = _labels(table, job, party)
    rng = Chance(job.seed, post.own.name).rng("split")
    split = group_split(own_groups(table, job), rng) if job.task.split == "group" else random_split(len(table), rng)
    frame = table.features()
    preparation = fit_preparation(
        frame, party=party, rows=split.train, rules=Rules(kinds=post.own.features.kinds), label=table.columns.label
    )
    return Prepared(
        PrimaryData(features_of(preparation, frame), labels, goal, post.own.name), preparation, classes, split
    )


def features_of(preparation: Preparation, frame: Any) -> Features:
    """Records as the networks take them."""
    return Features.of(preparation.apply(frame))


def neighbours_of(links: Delivery) -> Neighbours:
    """Links as the networks take them."""
    return Neighbours(links.partner.astype(np.int64), links.similarity.astype(np.float64))


def config_of(job: Job, method: str | None = None) -> Config:
    """The training a job describes."""
    training = job.training
    wanted = Deviations(training.epochs, training.batch_size, training.learning_rate, training.patience)
    config = config_for(training.preset, method or training.method, wanted, seed=job.seed, device="cpu")
    return replace(config, save_steps=training.checkpoint_steps)


@dataclass(frozen=True, eq=False)
class Heeding(Hook):
    """Hears the owner's wish to stop where no partner is waited for."""

    alarm: Alarm

    def stepped(self, step: int) -> None:
        self.alarm.heed_owner()


def save_solo(post: Post, keep: Keep, prepared: Prepared) -> None:
    """Train the primary's own features alone, for the hours in which a partner is away."""
    config, hooks = config_of(post.job, "solo"), [Heeding(post.station.alarm)]
    result = train(prepared.data, [], prepared.split, config, hooks=hooks)
    keep.save_part(SOLO, result.model.primary.part.network.state_dict(), _facts(prepared, result))


def _labels(table: OwnTable, job: Job, party: str) -> tuple[NDArray[Any], list[Any], Goal]:
    if job.task.kind == "classification":
        return *classes_of(table.label(), party), Goal.CLASSES
    return numbers_of(table.label(), party), [], Goal.NUMBERS


def own_groups(table: OwnTable, job: Job) -> Integers:
    """Records that no secondary's linkage can tell apart stay together."""
    written = [table.identifiers(name) for name in job.secondaries]
    compared = [table.compared(job, name) for name in job.secondaries]
    return alike_records(written, compared, party=str(table.own.party))


def _opener(session_with: Callable[[Party], Session], party: Party) -> Callable[[], Session]:
    return lambda: session_with(party)


def _links(post: Post, keep: Keep, coordinator: Reach, table: OwnTable, party: Party, split: Split) -> Delivery:
    """The partners of every record, from the coordinator or from what it sent before."""
    encoded = keep.encoded(table, party.name)
    counted = np.zeros(len(encoded), dtype=bool)
    counted[split.train] = True
    digest = table_digest(encoded, counted.astype(np.uint8))
    path = post.folder / "lists" / f"{party.name}.safetensors"
    kept = load_delivery(path) if path.is_file() else None
    have = "" if kept is None else arrays_digest(kept.partner, kept.similarity)
    question = Table(party.name, encoded, counted, digest)
    answer = coordinator.ask(lambda session: fetch_partners(session, question, have))
    if answer is None and kept is not None:
        return kept
    if answer is None:
        raise PeerError(f"{coordinator.session().peer} says that nothing has changed, but nothing was there before")
    delivery = Delivery(np.array(answer.partner), np.array(answer.similarity))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_delivery(delivery, path)
    return delivery


def _trained(
    post: Post,
    prepared: Prepared,
    lists: dict[Party, Delivery],
    reaches: dict[Party, Reach],
    hooks: Sequence[Hook],
) -> tuple[Result, Gates]:
    """Train; whenever a secondary starts anew, all go back to the last common checkpoint."""
    config, form = config_of(post.job), form_named(post.job.training.wire)
    noise = cut_noise(post.job.protection.gradients, post.folder)
    while True:
        try:
            holders = {party: RemoteSecondary(reach.session(), form, noise=noise) for party, reach in reaches.items()}
            held = [HeldList(neighbours_of(links), (holders[party],)) for party, links in lists.items()]
            result = train_with(
                prepared.data, held, prepared.split, config, folder=post.folder / "checkpoints", hooks=hooks
            )
            gates = look_into(result, prepared, [part.neighbours for part in held])
            for holder in holders.values():
                holder.finish()
        except PeerRestarted as restarted:
            log.warning("%s; all go on from the last common checkpoint", restarted)
            post.station.note("restarted", {"peer": str(restarted.peer)})
        else:
            return result, gates


def _save(keep: Keep, prepared: Prepared, result: Result) -> None:
    keep.save_part(PART, result.model.primary.part.network.state_dict(), _facts(prepared, result))


def _facts(prepared: Prepared, result: Result) -> dict[str, Any]:
    return {
        "preparation": prepared.preparation.to_json(),
        "target": target_state(result.model.target),
        "classes": prepared.classes,
        "metrics": result.metrics,
        "history": [asdict(epoch) for epoch in result.history],
        "best_epoch": result.best.number,
    }


def outcome_of(keep: Keep) -> Outcome:
    """How a training that has ended went."""
    facts = keep.load_part(PART)[1]
    return Outcome(facts["metrics"], facts["best_epoch"], len(facts["history"]))


def _tell_coordinator(coordinator: Reach, post: Post) -> None:
    """A coordinator that has not heard of the end is told; one that has gone has heard."""
    post.station.wait_seconds = LAST_WORD_SECONDS
    try:
        coordinator.ask(finish)
    except PeerError:
        log.info("the coordinator has gone before")
