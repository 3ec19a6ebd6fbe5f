"""The secondary's side of the protocol: identifiers to the coordinator, its cut layer to the primary.

The primary requests rows by pseudonym; the coordinator says which row is meant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import PeerError, PolicyError, SettingError
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.protocol import cut_layer, messages as m, transport
from fedsim.protocol.session import Session
from fedsim.splitnn.party_model import DamagedCheckpoint
from fedsim.splitnn.secondary_model import INFERENCE_ROWS, LocalSecondary
from fedsim.storage.files import DigestSet, record_digest
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import AnyArray, Bits, EncodedTable, Integers32, Words

MAX_CHECKPOINTS = 4


@dataclass(frozen=True, eq=False)
class RowMapping:
    """What the primary's row numbers stand for, as the coordinator says; only rows linked to this primary have one.

    ``rows`` holds the row behind every number, -1 behind a number that no record is linked to.
    """

    rows: Integers32
    key: Bits
    n_trained: int  # training records of the primary

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def digest(self) -> str:
        """The digest that represents it in an Offer."""
        return arrays_digest(self.rows, self.key)

    @property
    def linked(self) -> Integers32:
        """All rows that are linked to this primary, ascending."""
        return np.unique(self.rows[self.rows >= 0])

    def find(self, numbers: AnyArray) -> Integers32:
        """Return the rows behind distinct numbers."""
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise LookupError
        rows = self.rows[numbers]
        if (rows < 0).any() or len(np.unique(numbers)) < len(numbers):
            raise LookupError
        return rows

    @staticmethod
    def find_new(numbers: AnyArray, links: transport.LinkedRows) -> Integers32:
        """Return the same for links of new records that the coordinator sealed."""
        known, first = np.unique(links.numbers, return_index=True)
        place = np.searchsorted(known, numbers)
        if len(np.unique(numbers)) < len(numbers) or (place >= len(known)).any() or (known[place] != numbers).any():
            raise LookupError
        return links.rows[first[place]]


def fetch_row_mapping(
    session: Session, encoded: EncodedTable, digest: str, have: str, terms: LinkageConfig
) -> RowMapping | None:
    """Request the order of our rows; return None if the one with the digest ``have`` is still valid."""
    name, n_records = session.connection.party.name, len(encoded)
    request = session.send(m.Offer(name, digest, have))
    if session.wait_reply(request, m.Want).wanted:
        request = session.send(m.Candidates(name, encoded.fingerprint, encoded.n_bits, bits=encoded.bits))
    answer = session.wait_reply(request, m.Message)
    if isinstance(answer, m.Unchanged):
        return None
    if isinstance(answer, m.RowOrder) and _fits_terms(answer, n_records, terms):
        return RowMapping(np.array(answer.order), np.array(answer.seal), answer.n_trained)
    rule = f"the {n_records} records and the terms of the job (k={terms.k})"
    raise PeerError(f"{session.peer} sent a row order that does not fit {rule}", code="bad-row-order")


def _fits_terms(answer: m.RowOrder, n_records: int, terms: LinkageConfig) -> bool:
    """Return whether a row order is one that the terms of the job allow; the coordinator may be wrong or lie."""
    order = answer.order
    if len(answer.seal) != transport.SEAL_KEY_BYTES or answer.n_trained < 1 or not len(order):
        return False
    linked = np.unique(order[order != m.UNLINKED])  # every linked row once; the others are left out
    in_range = len(linked) >= terms.k and linked[0] >= 0 and linked[-1] < n_records
    once = len(linked) == np.count_nonzero(order != m.UNLINKED)
    return bool(in_range and once and len(order) == n_records)


# What a primary may ask in a job, in training and after it. A question is known by the weights that answer it, its
# rows, and in training its step (dropout). Asked again it gets the same answer, so that a resumed training asks no new
# question for the steps that it repeats. A question that differs in a single number is another
# one. Only the number of different questions is limited.


@dataclass(frozen=True)
class RequestLimits:
    """The most that one training may ask, from the job and the owner's policy."""

    total_steps: int  # of the job
    steps: int  # different questions with gradients, with some to spare for a training that resumes elsewhere
    inferences: int  # different questions without gradients
    rows_per_step: int
    new_records: int  # whose links are answered for predictions, over all sessions


@dataclass(eq=False)
class RequestCounter:
    """Counts different questions through all processes of this party; without a folder for one training only."""

    limits: RequestLimits
    folder: Path | None = None

    def __post_init__(self) -> None:
        self._asked, self._inferred, self._predicted = (
            DigestSet(self.folder and self.folder / f"asked-{kind}") for kind in ("steps", "inferences", "records")
        )

    def count(self, peer: m.Party, weights: str, message: m.Ask | m.Infer) -> None:
        """Count a question, also after training; raise ``PeerError`` if it is new and the limit is reached.

        New records are limited by their number, so all of them together are one question to given weights.
        """
        training = isinstance(message, m.Ask)
        step = message.step if isinstance(message, m.Ask) else m.OUTSIDE_TRAINING
        rows = b"" if isinstance(message, m.Infer) and len(message.sealed) else message.rows.tobytes()
        digest = record_digest(f"{weights} {step} ".encode() + rows)
        limit = self.limits.steps if training else self.limits.inferences
        what = "training steps" if training else "requests without gradients"
        # Not flushed: a killed process loses none, and a flush would take longer than many a step.
        self._add(self._asked if training else self._inferred, [digest], limit, f"{peer} requested {what}", sync=False)

    def count_records(self, peer: m.Party, records: Words) -> None:
        """Count the new records of a prediction, which the coordinator named."""
        digests = [record.tobytes().ljust(16, b"\0") for record in np.unique(records)]
        self._add(self._predicted, digests, self.limits.new_records, f"{peer} requested predictions of new records")

    @staticmethod
    def _add(known: DigestSet, digests: list[bytes], limit: int, request: str, *, sync: bool = True) -> None:
        new = known.missing(digests)
        if new and len(known) + len(new) > limit:
            raise PeerError(f"{request} beyond the limit of {limit:,} that job and policy set", code="over-limit")
        if new:
            known.add(new, sync=sync)


@dataclass(eq=False)
class SecondaryResponder:
    """Answers the primary.

    ``start`` builds a new network as a Begin requests, ``load_trained`` loads the saved one, ``finish`` saves one,
    ``on_new_rows`` may refuse to show rows that new records are linked to, by a ``PolicyError``; so may ``on_uses``,
    which gets the same rows with the hash of the new record.
    ``on_farewell`` runs when the primary is done.
    """

    width: int
    order: RowMapping
    requests: RequestCounter
    start: Callable[[m.Begin], LocalSecondary]
    load_trained: Callable[[], LocalSecondary]
    finish: Callable[[LocalSecondary], None]
    on_new_rows: Callable[[Integers32], None]
    on_farewell: Callable[[], None]
    form: cut_layer.WireFormat
    on_uses: Callable[[Integers32, Words], None] = lambda rows, uses: None
    sealed: bool = False  # labels are sealed: rows are sent on request, and nothing is trained
    embedding: Tensor | None = None  # of every row, which the primary may request once beside the activations
    _party: LocalSecondary | None = field(default=None, init=False)
    _training: bool = field(default=False, init=False)
    _steps: int = field(default=0, init=False)
    _next_step: int = field(default=0, init=False)
    _in_study: bool = field(default=False, init=False)  # nothing of the current training is saved
    _counter: RequestCounter = field(init=False)  # of the current training

    def __post_init__(self) -> None:
        self._counter = self.requests

    def serve(self, session: Session) -> None:
        """Answer until the primary says farewell; an exception ends the session earlier."""
        while not isinstance((envelope := session.receive()).message, m.Farewell):
            reply = self._reply(session, envelope)
            if reply is not None:
                session.send(reply, reply_to=envelope.sequence)
        self.on_farewell()

    def _reply(self, session: Session, envelope: transport.Envelope) -> m.Message | None:
        message = envelope.message
        if isinstance(message, m.Meet):
            return self._meet(session, message)
        if self.sealed and not isinstance(message, m.Infer | m.Finish):
            fault = f"{session.peer} sent '{message.kind}', but the job seals labels: nothing is trained here"
            raise PeerError(fault, code="labels-are-sealed")
        if isinstance(message, m.Begin | m.Embed):
            return self._begin(session, message) if isinstance(message, m.Begin) else self._embedding(session, message)
        if self._party is None or not (self._training or self.sealed or isinstance(message, m.Infer)):
            raise PeerError(f"{session.peer} sent '{message.kind}' before 'begin'", code="not-begun")
        if isinstance(message, m.Gradients):
            self._descend(session, self._party, message)
            return None
        if isinstance(message, m.Ask | m.Infer):
            return self._activations(session, self._party, message)
        return self._control(session, self._party, message)

    def _meet(self, session: Session, message: m.Meet) -> m.Message:
        if message.predicting:
            session.phase = m.Phase.PREDICT
        if message.predicting or self.sealed:
            self._party, self._training = self.load_trained(), False
            self._in_study, self._counter = False, self.requests
        return m.Ready(self.width, len(self.order))

    def _show_rows(self, rows: Integers32, uses: Words) -> None:
        """Count rows that may be requested from now on, and who uses them; the owner's limits refuse the primary."""
        try:
            self.on_uses(rows, uses)
            self.on_new_rows(rows)
        except PolicyError as error:
            raise PeerError(str(error), code=error.code) from error

    def _begin(self, session: Session, message: m.Begin) -> m.Message:
        limits = self.requests.limits
        if not 1 <= message.total_steps <= limits.total_steps:
            fault = f"{session.peer} requested a training of {message.total_steps} steps"
            raise PeerError(f"{fault}; the job has {limits.total_steps}", code="bad-steps")
        self._party, self._training = None, False
        try:
            self._party = self.start(message)
        except PolicyError as error:  # the session continues: other requests may be allowed
            return m.Done(str(error))
        self._training, self._steps, self._in_study = True, message.total_steps, message.study
        self._next_step, self._counter = 0, RequestCounter(limits) if message.study else self.requests
        return m.Done("")

    def _activations(self, session: Session, party: LocalSecondary, message: m.Ask | m.Infer) -> m.Message:
        rows = self._find_rows(session, message)
        if isinstance(message, m.Ask):
            self._check_step(session, party, message)
        purpose = b"training" if isinstance(message, m.Ask) else b""
        weights = cut_layer.weights_digest(party.model.network.state_dict(), purpose)
        if isinstance(message, m.Infer) and not len(message.sealed) and len(rows) > INFERENCE_ROWS:
            fault = f"{session.peer} requested {len(rows)} rows at once; the limit is {INFERENCE_ROWS}"
            raise PeerError(fault, code="bad-rows")
        self._counter.count(session.peer, weights, message)
        selected = torch.from_numpy(rows).to(party.model.device)
        if isinstance(message, m.Ask):
            values, step = party.activations(selected, message.step), message.step
        else:
            values, step = party.infer(selected), m.OUTSIDE_TRAINING
        return m.Activations(step, values=cut_layer.pack_tensor(values, self.form))

    def _embedding(self, session: Session, message: m.Embed) -> m.Message:
        if self.embedding is None:
            fault = f"{session.peer} sent 'embed', but the job has no embedding beside the activations"
            raise PeerError(fault, code="no-embedding")
        values = self.embedding[torch.from_numpy(self._find_rows(session, message))]
        return m.Activations(m.OUTSIDE_TRAINING, values=cut_layer.pack_tensor(values, self.form))

    def _find_rows(self, session: Session, message: m.Ask | m.Infer | m.Embed) -> Integers32:
        """Return the rows that a request means: rows linked to this primary, each once."""
        try:
            if isinstance(message, m.Ask) or not len(message.sealed):
                return self.order.find(message.rows)
            if self._training:
                raise PeerError(f"{session.peer} requested new records during training", code="new-in-training")
            links = transport.unseal_links(self.order.key, message.sealed)
            found = self.order.find_new(message.rows, links)
        except LookupError:
            fault = f"{session.peer} requested rows that are not linked to its records, or a row twice"
            raise PeerError(fault, code="bad-rows") from None
        self.requests.count_records(session.peer, links.records)
        self._show_rows(links.rows, np.repeat(links.records, len(links.rows) // max(1, len(links.records))))
        return found

    def _check_step(self, session: Session, party: LocalSecondary, message: m.Ask) -> None:
        most = self.requests.limits.rows_per_step
        if party.pending_shape is not None:
            raise PeerError(f"{session.peer} sent 'ask' instead of gradients", code="gradients-due")
        # A primary that no longer improves continues with the last steps; no step comes twice.
        if not self._next_step <= message.step < self._steps:
            fault = f"{session.peer} requested step {message.step} after step {self._next_step - 1} of {self._steps}"
            raise PeerError(fault, code="bad-step")
        if len(message.rows) > most:
            fault = f"{session.peer} requested {len(message.rows)} rows in one step; the job has at most {most}"
            raise PeerError(fault, code="bad-rows")

    def _descend(self, session: Session, party: LocalSecondary, message: m.Gradients) -> None:
        fault = f"{session.peer} sent gradients of step {message.step}"
        due = party.pending_shape
        values = None if due is None else cut_layer.unpack_tensor(message.values, self.form, due)
        if values is None:
            fault += f" that are not numbers up to {self.form.most:g} in the shape of the activations"
            raise PeerError(f"{fault}; the weights did not change", code="bad-gradients", step=message.step)
        try:
            party.descend(values.to(party.model.device), message.step)
        except SettingError as error:
            fault += ", but the last activations are of another step"
            raise PeerError(f"{fault}; the weights did not change", code="bad-gradients") from error
        self._next_step = message.step + 1

    def _control(self, session: Session, party: LocalSecondary, message: m.Message) -> m.Message | None:
        sent = f"{session.peer} sent '{message.kind}'"
        self._check_control(sent, party, message)
        if isinstance(message, m.KeepBest):
            party.keep_best()
        elif isinstance(message, m.UseBest) and party.model.best:
            party.use_best()
        elif isinstance(message, m.ForgetBefore):
            party.forget_before(message.step)
        elif isinstance(message, m.Save):
            party.save(message.step)
            if party.checkpoint_store:  # the primary says which checkpoints may go, but must not fill our disk
                party.forget_before(party.checkpoint_store.steps()[-MAX_CHECKPOINTS:][0])
        elif isinstance(message, m.Restore):
            try:
                party.restore(message.step)
                self._next_step = message.step
            except DamagedCheckpoint as error:  # whose text names our folders: for our log only
                session.connection.log_peer_event("damaged checkpoint", session.peer, logging.WARNING, "%s", error)
                return m.Done(f"its checkpoint of step {message.step} cannot be read")
        elif isinstance(message, m.Finish):
            session.phase = m.Phase.END
            self.finish(party)
        else:
            raise PeerError(f"{sent}, which is unexpected here", code="unexpected-message")
        return m.Done("") if isinstance(message, m.Save | m.Restore | m.Finish) else None

    def _check_control(self, sent: str, party: LocalSecondary, message: m.Message) -> None:
        if self._in_study and isinstance(message, m.Save | m.Restore | m.ForgetBefore | m.Finish):
            raise PeerError(f"{sent} in a study, of which nothing is saved", code="not-in-study")
        if isinstance(message, m.Save | m.Restore | m.ForgetBefore) and not 0 <= message.step <= self._steps:
            raise PeerError(f"{sent} of step {message.step} in a training of {self._steps} steps", code="bad-step")
        if isinstance(message, m.UseBest | m.Restore) and party.pending_shape is not None:
            raise PeerError(f"{sent} instead of gradients", code="gradients-due")
