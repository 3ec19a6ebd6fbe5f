"""The secondary's process: answers the primary, by rows that the coordinator linked or from its encrypted table."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from fedsim.config.job import Job
from fedsim.config.party_file import MAX_REPEATED_EPOCHS, PartyFile
from fedsim.data.features import FeaturePreprocessor
from fedsim.data.table_reader import frame_digest
from fedsim.errors import AwayError, FileError, InputError, PeerError, PolicyError
from fedsim.linkage.direct.encrypted_table import EncryptedTable, build_table
from fedsim.linkage.direct.exchange import TokenEvaluator
from fedsim.linkage.direct.key_store import Shown
from fedsim.pipeline.party_table import PartyData
from fedsim.pipeline.release import Release, release_table
from fedsim.protocol import cut_layer, transport
from fedsim.protocol.messages import Begin, Farewell, Role
from fedsim.protocol.roles.secondary_role import (
    RequestCounter,
    RequestLimits,
    RowMapping,
    SecondaryResponder,
    fetch_row_mapping,
)
from fedsim.protocol.roles.table_role import TableFile, TableResponder
from fedsim.protocol.session import PeerRestarted, Session, abort_session, close_sessions, retry_pauses, send_notices
from fedsim.registry import PRESETS
from fedsim.runs.budget import PrimaryBudget, Spending, key_store, tokens_spent
from fedsim.runs.input_record import run_inputs
from fedsim.runs.run_folder import SERVING_STAGE, TRAINED_MODEL, make_private_folder
from fedsim.runtime.party_context import LinkageProgress, PartyContext, ReconnectingPeer, software_versions
from fedsim.runtime.run_store import RunStore
from fedsim.splitnn import layers, party_model, secondary_model
from fedsim.storage.files import atomic_write, record_digest, remove_paths
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import Features, Floats32, Integers32, Words, training_length

log = logging.getLogger("fedsim.parties")

ENDED_FILE = "ended"
GRACE_SECONDS = 120.0  # how long to wait for a disconnected primary once our part is saved
FINAL_INFERENCES = 8  # beside the epochs: validation, test, and what explains and calibrates the model


def run_secondary(context: PartyContext, *, stay: bool = False) -> None:
    """Take part until the primary says farewell.

    Parameters
    ----------
    context
        The running party, from :func:`open_party_context`.
    stay
        Whether to stay for predictions afterwards.
    """
    party_model.resolve_device(context.party_file.device)  # fails before other parties wait for this one
    torch.set_num_threads(context.job.training.threads)
    context.connection.record_event("computes with", software_versions())
    store = RunStore.of(context)
    hub, trained = ReconnectingPeer(lambda: context.dial(context.job.hub.role)), store.has_weights(TRAINED_MODEL)
    if not trained:
        hub.session()  # compares job and release, before any data is read
    recorded = run_inputs(context.folder)
    inputs = recorded.read(context.job, [context.party_file])  # before the table, which may change meanwhile
    table = PartyData.read(context.job, context.party_file, approved=True)
    part = _OwnPart(context, store, table, stay)
    role, first = (_table_responder if context.job.direct else _row_responder)(part, hub)
    if not trained:
        recorded.save(inputs)
    if stay:
        context.connection.wait_seconds = float("inf")
        context.connection.serves_predictions = trained
        if trained:
            context.progress.enter(SERVING_STAGE)
    elif trained:
        part.shorten_wait()
    _serve_primary(context, store, role, stay, first)


@dataclass(frozen=True, eq=False)
class _OwnPart:
    """What a secondary has and saves in a job."""

    context: PartyContext
    store: RunStore
    table: PartyData
    stay: bool

    @cached_property
    def budget(self) -> PrimaryBudget:
        """The budget of the primary."""
        return PrimaryBudget.of(self.context.party_file, self.context.job.primary.name)

    @cached_property
    def preparation(self) -> FeaturePreprocessor:
        """How features become network inputs, learnt from our table when the job was first run."""
        if self.store.has_weights(TRAINED_MODEL):
            return FeaturePreprocessor.from_json(self.store.load_weights(TRAINED_MODEL)[1]["preparation"])
        terms = self.context.job.secondaries[self.context.party_file.name]
        return self.table.fit_features(least=terms.m or 1)

    def features(self) -> Features:
        """Return the features with the noise that the job requires."""
        features = self.preparation.apply(self.table.typed_features, self.context.folder)
        return self.store.protect_features(features, self.table)

    def charge_job(self, epochs: int) -> None:
        """Charge the job, before anything is linked."""
        _record_spending(self.context, self.budget.charge_job(self.context.job.hash, epochs))

    def save(self, weights: Mapping[str, torch.Tensor], identifiers: str) -> None:
        """Save our part of the model; ``identifiers`` is the digest of what identifies our rows."""
        facts = {"preparation": self.preparation.to_json(), "identifiers": identifiers}
        self.store.save_weights(TRAINED_MODEL, weights, facts)
        connection, primary = self.context.connection, self.context.peer(Role.PRIMARY)
        connection.record_peer_event("saved", primary, {"what": "our part of the model"})
        if self.context.job.protection.sealed:
            days = self.context.job.protection.retention.days
            connection.record_peer_event("rows sent", primary, {"peer": str(primary), "retention_days": days})
        if self.stay:
            connection.serves_predictions = True
            self.context.progress.enter(SERVING_STAGE)
        else:
            self.shorten_wait()

    def shorten_wait(self) -> None:
        """Wait less for a disconnected primary, now that our part of the model is saved."""
        self.context.connection.wait_seconds = min(self.context.connection.wait_seconds, GRACE_SECONDS)


def _row_responder(part: _OwnPart, coordinator: ReconnectingPeer) -> tuple[SecondaryResponder, None]:
    """Return what answers by rows that the coordinator linked; there is no session with the primary yet."""
    context, store, table = part.context, part.store, part.table
    part.charge_job(longest_training(context.job)[0])
    order, digest = _load_or_fetch_order(context, table, store, coordinator)
    shown = _ShownRecords(
        context, part.budget, table.digests([*table.columns.linking, *(table.columns.features or ())])
    )
    shown.add(order.linked)
    features, embedding = part.features(), None
    if context.job.sends_embedding:
        embedding = store.embed_features(features, context.party_file.name, store.own_seed(context.job.seed))
    if embedding is not None and context.job.protection.sealed:
        features = Features(embedding)
    return _SecondaryWorker(part, features, embedding, shown, digest).responder(order), None


def _table_responder(part: _OwnPart, primary: ReconnectingPeer) -> tuple[TableResponder, Session | None]:
    """Return what answers from our encrypted table, the same in every job with the same terms, and an open session."""
    own = OwnTable(part.context)
    trained = part.store.has_weights(TRAINED_MODEL)
    file = _table_file(part, own, None if trained else primary.session())
    responder = own.responder(file, lambda: part.save({}, file.digest))
    return responder, None if trained else primary.session()  # which may have ended meanwhile


def _table_file(part: _OwnPart, own: OwnTable, session: Session | None = None) -> TableFile:
    part.charge_job(0)
    released = own.release(part.table, part.preparation)
    features = part.store.protect_features(released.features, part.table, released.source)
    vectors = part.store.embed_features(features, part.context.party_file.name, part.store.lasting_seed)
    return own.file(part.table, released, vectors, session)


def write_table(context: PartyContext, path: Path) -> TableFile:
    """Write the encrypted table of a secondary to a file, for the primary of the job.

    Parameters
    ----------
    context
        The secondary, from :func:`open_offline_context`.
    path
        The file, which must not exist.
    """
    if path.exists():
        raise FileError(f"{path} exists; choose another name, or remove it", code="already-exists")
    torch.set_num_threads(context.job.training.threads)
    table = PartyData.read(context.job, context.party_file, approved=True)
    file = _table_file(_OwnPart(context, RunStore.of(context), table, stay=False), OwnTable(context))
    with atomic_write(path, mode=0o600) as part:
        shutil.copyfile(file.path, part)
    context.connection.record_event("table written", {"digest": file.digest, "rows": file.rows})
    return file


def _serve_primary(
    context: PartyContext,
    store: RunStore,
    responder: SecondaryResponder | TableResponder,
    stay: bool,
    first: Session | None,
) -> None:
    """Answer the primary through all its restarts, until it says farewell; ``first`` is a session that is open."""
    connection, pauses, logged = context.connection, retry_pauses(), ""
    while True:
        try:
            session, first = first or context.dial(Role.PRIMARY), None
            try:
                responder.serve(session)
            except PeerError as error:
                if connection.serves_predictions:  # notify the primary, which waits for an answer
                    abort_session(session, error)
                raise
            if not stay:
                return
            pauses, logged = retry_pauses(), ""
        except PeerRestarted as restarted:
            resumes = "%s; it resumes from the last common checkpoint"
            connection.log_peer_event("restarted", restarted.peer, logging.INFO, resumes, restarted)
        except PeerError as error:
            # A primary that broke a rule has not just exited.
            exited = isinstance(error, AwayError) and store.has_weights(TRAINED_MODEL)
            if connection.stop_signal.failure or not (connection.serves_predictions or exited):
                raise
            if not connection.serves_predictions:
                log.info("the primary has exited; our part of the model is saved")
                return
            if str(error) != logged:
                logged, waits = str(error), "%s; waiting for the next request"
                connection.log_peer_event("refused request", context.peer(Role.PRIMARY), logging.INFO, waits, error)
            connection.stop_signal.wait(next(pauses))


def _load_or_fetch_order(
    context: PartyContext, table: PartyData, store: RunStore, coordinator: ReconnectingPeer
) -> tuple[RowMapping, str]:
    """Return the row behind each pseudonym, from the coordinator or from what it sent before.

    The digest of the encoded identifiers beside it tells whether rows are still the same.
    """
    path, name, saved = context.folder / "order.safetensors", context.party_file.name, None
    encoded = store.encoded(table, name)
    digest = transport.offer_digest(encoded)
    with suppress(OSError, KeyError, SafetensorError):  # if missing or damaged, the coordinator sends it again
        arrays = safetensors.numpy.load(path.read_bytes())
        saved = RowMapping(arrays["rows"], arrays["key"], int(arrays["n_trained"][0]))
    if saved is not None and store.has_weights(TRAINED_MODEL):
        if store.load_weights(TRAINED_MODEL)[1]["identifiers"] != digest:
            changed = f"the identifiers of {context.party_file.party} changed since the model was trained"
            hint = "so rows would be mixed up; restore the table of the training, or train a new job"
            raise InputError(f"{changed}, {hint}", code="identifiers-changed")
        return saved, digest  # it belongs to the weights, and the coordinator may be gone
    have = "" if saved is None else saved.digest
    terms = context.job.secondaries[name]
    order = coordinator.ask(lambda session: fetch_row_mapping(session, encoded, digest, have, terms.linkage))
    if order is None:
        if saved is not None:
            return saved, digest
        raise PeerError("the coordinator reports no change, but sent no row order before", code="unexpected-reply")
    with atomic_write(path, mode=0o600) as file:
        arrays = {"rows": order.rows, "key": order.key}
        file.write_bytes(safetensors.numpy.save({**arrays, "n_trained": np.array([order.n_trained])}))
    return order, digest


@dataclass(eq=False)
class _ShownRecords:
    """Charges the records that the primary may ask for, each once in this process."""

    context: PartyContext
    budget: PrimaryBudget
    digests: list[bytes]

    def __post_init__(self) -> None:
        self._charged = np.zeros(len(self.digests), dtype=bool)
        self._used: set[tuple[int, int]] = set()

    def add(self, rows: Integers32) -> None:
        """Charge rows that are linked to records of the primary; raise ``PolicyError`` beyond the owner's limit."""
        self._check(rows)
        new = np.unique(rows[~self._charged[rows]])
        if len(new):
            _record_spending(self.context, self.budget.charge_records(self.digests[row] for row in new))
            self._charged[new] = True

    def add_uses(self, rows: Integers32, uses: Words) -> None:
        """Charge the use of rows by new records; raise ``PolicyError`` beyond the owner's limit."""
        if self.budget.policy.max_record_uses is None:
            return
        self._check(rows)
        pairs = set(zip(rows.tolist(), uses.tolist(), strict=True)) - self._used
        if pairs:
            job = self.context.job.hash.encode()  # another job draws its noise anew
            hashes = {use: record_digest(job + use.to_bytes(8)) for _, use in pairs}
            spent = self.budget.charge_uses((self.digests[row], hashes[use]) for row, use in pairs)
            _record_spending(self.context, spent)
            self._used |= pairs

    def _check(self, rows: Integers32) -> None:
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self.digests)):
            raise PeerError("the coordinator linked rows that do not exist", code="bad-rows")


@dataclass(frozen=True, eq=False)
class _SecondaryWorker:
    """Starts, loads and saves the secondary's network for the responder."""

    part: _OwnPart
    features: Features
    embedding: Floats32 | None
    shown: _ShownRecords
    digest: str  # of what identifies its rows

    @property
    def context(self) -> PartyContext:
        return self.part.context

    @property
    def store(self) -> RunStore:
        return self.part.store

    def responder(self, order: RowMapping) -> SecondaryResponder:
        job = self.context.job
        config = self._with_own_seed(secondary_model_spec(job))
        limits = request_limits(self.context.job, self.context.party_file, order.n_trained, len(order))
        return SecondaryResponder(
            width=config.local.build(self.features).width,
            order=order,
            requests=RequestCounter(limits, self.context.folder),
            start=partial(self._start, config),
            load_trained=partial(self._load_trained, config),
            finish=self._finish,
            on_new_rows=self.shown.add,
            on_uses=self.shown.add_uses,
            on_farewell=self._mark_ended,
            form=cut_layer.wire_format(job.training.wire),
            sealed=job.protection.sealed,
            embedding=None if self.embedding is None else torch.from_numpy(self.embedding),
        )

    @property
    def _device(self) -> torch.device:
        return party_model.resolve_device(self.context.party_file.device)

    def _with_own_seed(self, config: secondary_model.SecondaryConfig) -> secondary_model.SecondaryConfig:
        """Draw weights from our secret: known first weights would reveal features through the first activations."""
        return replace(config, seed=self.store.own_seed(config.seed))

    def _load_trained(self, config: secondary_model.SecondaryConfig) -> secondary_model.LocalSecondary:
        sealed = self.context.job.protection.sealed  # then nothing is trained here, and rows are sent as they are
        weights = {} if sealed else self.store.load_weights(TRAINED_MODEL)[0]
        name = self.context.party_file.name
        return secondary_model.restore_secondary(name, self.features, config, weights, device=self._device)

    def _start(self, config: secondary_model.SecondaryConfig, begin: Begin) -> secondary_model.LocalSecondary:
        party_file, folder, connection = self.context.party_file, self.context.folder, self.context.connection
        primary = self.context.peer(Role.PRIMARY)
        if begin.study:
            _record_spending(self.context, self.part.budget.charge_study(longest_training(self.context.job)[0]))
            config = self._with_own_seed(replace(secondary_model_spec(self.context.job), seed=begin.seed))
            features = self.features
            if begin.placebo:
                rng = party_model.RandomSource(config.seed, party_file.name).rng("placebo")
                features = features.take(rng.permutation(len(features)))
            party = secondary_model.start_secondary(
                party_file.name, features, config, total_steps=begin.total_steps, device=self._device
            )
            connection.record_peer_event("study", primary, {"seed": begin.seed, "placebo": begin.placebo})
            return party
        if (folder / ENDED_FILE).is_file():
            message = f"{party_file.party} has completed the training of this job; add --again at every party"
            raise PolicyError(message, code="already-trained")
        connection.record_peer_event("training", primary, {"steps": begin.total_steps})
        return secondary_model.start_secondary(
            party_file.name,
            self.features,
            config,
            total_steps=begin.total_steps,
            folder=folder / "checkpoints",
            device=self._device,
        )

    def _finish(self, party: secondary_model.LocalSecondary) -> None:
        self.part.save(party.model.network.state_dict(), self.digest)

    def _mark_ended(self) -> None:
        """Record that the primary has its part too: this job is never trained again."""
        if self.store.has_weights(TRAINED_MODEL):
            with atomic_write(self.context.folder / ENDED_FILE) as file:
                file.write_text("")
        if self.part.stay and self.context.job.protection.sealed:  # the end of training depends on labels
            coordinators = [one for one in self.context.sessions() if one.peer.role is Role.COORDINATOR]
            close_sessions(coordinators, Farewell())


def _record_spending(context: PartyContext, spent: Spending) -> None:
    counts = {"jobs": len(spent.jobs), "studies": spent.studies, "epochs": spent.epochs, "records": spent.records}
    if context.party_file.policy.max_record_uses is not None:
        counts["most uses of a record"] = spent.most_uses
    primary = context.peer(Role.PRIMARY)
    context.connection.record_peer_event("budget", primary, {"primary": primary.name, **counts})


def longest_training(job: Job, n_trained: int | None = None) -> tuple[int, int]:
    """Return the epochs of a job and the records per step, as the primary derives them from job and preset.

    Without the number of training records, where that decides, the epochs are the most that there can be.
    """
    preset: secondary_model.Preset = PRESETS[job.training.preset]
    epochs, batch = preset.epochs, preset.batch
    if preset.by_size:
        length = training_length(n_trained or 1)
        epochs, batch = length.epochs, length.batch
    return job.training.epochs or epochs, job.training.batch_size or batch


def request_limits(job: Job, party_file: PartyFile, n_trained: int, n_rows: int) -> RequestLimits:
    """Return the most that the primary may ask of a secondary in a job, ``n_rows`` of which it has numbers."""
    (epochs, batch), policy = longest_training(job, n_trained), party_file.policy
    per_epoch, spare = -(-n_trained // batch), MAX_REPEATED_EPOCHS
    parts = -(-n_rows // secondary_model.INFERENCE_ROWS)  # of a request for all of them
    return RequestLimits(
        total_steps=epochs * per_epoch,
        steps=(epochs + spare) * per_epoch,
        inferences=(epochs + spare + FINAL_INFERENCES) * parts,
        rows_per_step=min(batch, n_trained) * job.secondaries[party_file.name].k,
        new_records=policy.max_new_records,
    )


def secondary_model_spec(job: Job) -> secondary_model.SecondaryConfig:
    """Return the configuration that the job prescribes for all secondaries."""
    config = secondary_model.secondary_config(job.training.method, job.training.settings, seed=job.seed)
    return replace(config, local=layers.Bare()) if job.protection.sealed else config


# The encrypted table of a job without a coordinator: its key, its file, and what is served from both.


TABLES_FOLDER = "tables"


class OwnTable:
    """The table of a running secondary, and what of it primaries asked for."""

    def __init__(self, context: PartyContext) -> None:
        own, self.context = context.party_file, context
        self.keys, self.terms = key_store(own), context.job.secondaries[own.name]

    def release(self, table: PartyData, preparation: FeaturePreprocessor) -> Release:
        """Return what the table shows, in groups that are the same in all jobs."""
        released = release_table(table, self.context.party_file.name, preparation, self.keys)
        facts = {"share": self.terms.share, "m": self.terms.m, "vectors": released.vectors}
        left_out = int((released.place < 0).sum())
        self.context.connection.record_event("groups formed", {**facts, "rows": len(released.place), "out": left_out})
        if left_out:
            log.info("%s of %s rows are in no group of %s and are not shown", left_out, len(table), self.terms.m)
        return released

    def file(self, table: PartyData, released: Release, vectors: Floats32, session: Session | None) -> TableFile:
        """Return the encrypted table, which is built once per content and key; ``session`` is told to wait.

        Its file is named by both: a job that runs at the same time with the same schema and other features, or for
        another primary, never sends this one's.
        """
        name, schema = self.context.party_file.name, self.terms.token_schema
        if not self.keys.record(name).keys:
            self.keys.create(name, datetime.now(UTC))
            self.context.connection.record_event("key created", {"table": name})
        job, now = self.context.job, datetime.now(UTC).isoformat(timespec="seconds")
        terms = self.terms.share or "", self.terms.m or 1, released.vectors
        self.keys.add_shown(name, Shown(job.primary.name, job.hash, now, *terms))
        key = self.keys.key(name)
        folder, identifiers = self.context.party_file.folder / TABLES_FOLDER, table.token_identifiers(name)
        least, of_rows = self.context.party_file.policy.least_list_rows, arrays_digest(vectors, released.place)
        content = [schema.fingerprint.hex(), key.public.hex(), frame_digest(identifiers), of_rows, least]
        of_key = key.public.hex()[:16]
        path = folder / f"{of_key}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()}.safetensors"
        with suppress(FileError):  # none yet, or damaged
            EncryptedTable.load(path, schema)
            return _described(path, vectors)
        make_private_folder(folder)
        stale = (one for one in folder.glob("*.safetensors") if not one.name.startswith(of_key))
        remove_paths(stale)  # their keys were destroyed
        with _while_waiting(session):
            progress = LinkageProgress(self.context, name, len(vectors), "the encrypted table")
            least = released.min_rows(least)
            built = build_table(schema, released.tokens, vectors, key, min_rows=least, progress=progress)
            replace(built, owner=name).save(path)
        found = _described(path, vectors)
        self.context.connection.record_event("table built", {"rows": len(vectors), "bytes": found.size})
        return found

    def responder(self, file: TableFile, on_finish: Callable[[], None]) -> TableResponder:
        """Return what answers the primary."""
        own = self.context.party_file
        limit = self.terms.max_tokens if own.policy.max_tokens is None else own.policy.max_tokens
        record = partial(self.context.connection.record_peer_event, peer=self.context.peer(Role.PRIMARY))

        def on_evaluation(tokens: int) -> None:
            primary = self.context.job.primary.name
            facts = {"primary": primary, "tokens": tokens, "total": tokens_spent(own, primary), "limit": limit}
            record("tokens evaluated", facts=facts)
            if not self.context.connection.serves_predictions:
                log.info("evaluated %s tokens for %s", f"{tokens:,}", primary)

        return TableResponder(
            table=file,
            evaluator=TokenEvaluator(self.keys, own.name, limit),
            on_table=lambda: record("table sent", facts={"digest": file.digest, "rows": file.rows}),
            on_evaluation=on_evaluation,
            on_finish=on_finish,
        )


def _described(path: Path, vectors: Floats32) -> TableFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return TableFile(path, digest, path.stat().st_size, *vectors.shape)


def _while_waiting(session: Session | None) -> AbstractContextManager[None]:
    return nullcontext() if session is None else send_notices(session, "encrypting its table")
