"""The secondary's side of the protocol: identifiers to the coordinator, its cut layer to the primary.

Rows are asked for by pseudonym, or by link where the job hides rows; the coordinator said which row is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import PeerError, PolicyError, SettingError
from fedsim.protocol.codec import NO_BYTES, SEAL_KEY_BYTES, Envelope, unseal_rows
from fedsim.protocol.cut_layer import CutNoise, WireFormat, pack_tensor, unpack_tensor, weights_occasion
from fedsim.protocol.messages import (
    OUTSIDE_TRAINING,
    Activations,
    Ask,
    Begin,
    Candidates,
    Done,
    Farewell,
    Finish,
    ForgetBefore,
    Gradients,
    Infer,
    KeepBest,
    Meet,
    Message,
    Offer,
    Phase,
    Ready,
    Restore,
    RowOrder,
    Save,
    Unchanged,
    UseBest,
    Want,
)
from fedsim.protocol.session import Session
from fedsim.splitnn.checkpoint_store import DamagedCheckpoint
from fedsim.splitnn.secondary_model import LocalSecondary
from fedsim.storage.digest import arrays_digest
from fedsim.types import EncodedTable

MAX_CHECKPOINTS = 4


@dataclass(frozen=True, eq=False)
class RowMapping:
    """Which of our rows every pseudonym stands for; with a key where the primary's numbers are those of its links."""

    rows: NDArray[np.int32]
    key: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def digest(self) -> str:
        """Stands for it in an offer."""
        return arrays_digest(self.rows, self.key)

    def opened(self, closed: NDArray[np.uint8]) -> NDArray[np.int32]:
        """The rows of a question: those of training, or what the coordinator sealed for it."""
        return unseal_rows(self.key, closed) if len(closed) else self.rows


def fetch_row_mapping(session: Session, encoded: EncodedTable, digest: str, have: str) -> RowMapping | None:
    """The order of our rows; nothing where the one in hand still holds."""
    name = session.connection.party.name
    request = session.post(Offer(name, digest, have))
    if session.fetch(request, Want).wanted:
        request = session.post(Candidates(name, encoded.fingerprint, encoded.n_bits, bits=encoded.bits))
    answer = session.fetch(request, Message)
    if isinstance(answer, Unchanged):
        return None
    if not isinstance(answer, RowOrder) or not _is_valid_order(answer, len(encoded)):
        raise PeerError(f"{session.peer} sent an order of rows that does not fit the {len(encoded)} records")
    return RowMapping(np.array(answer.order), np.array(answer.seal))


def _is_valid_order(answer: RowOrder, n_records: int) -> bool:
    """Every row once; or, where rows are hidden, any rows that there are."""
    order = answer.order
    if len(answer.seal):
        return len(answer.seal) == SEAL_KEY_BYTES and len(order) > 0 and order.min() >= 0 and order.max() < n_records
    return len(order) == n_records and bool((np.sort(order) == np.arange(n_records)).all())


@dataclass(eq=False)
class SecondaryResponder:
    """Answers the primary. ``start`` builds the network anew as a Begin says, ``trained`` brings the saved one."""

    width: int
    order: RowMapping
    start: Callable[[Begin], LocalSecondary]
    trained: Callable[[], LocalSecondary]
    finish: Callable[[LocalSecondary], None]
    farewell: Callable[[], None]
    form: WireFormat
    noise: CutNoise | None = None
    _party: LocalSecondary | None = field(default=None, init=False)
    _learns: bool = field(default=False, init=False)
    _steps: int = field(default=0, init=False)
    _studies: bool = field(default=False, init=False)  # what is learnt now is not kept

    def talk(self, session: Session) -> bool:
        """Answer until the primary says farewell (then true) or the conversation ends by an exception."""
        while True:
            envelope = session.next()
            if isinstance(envelope.message, Farewell):
                self.farewell()
                return True
            reply = self._reply(session, envelope)
            if reply is not None:
                session.post(reply, reply_to=envelope.sequence)

    def _reply(self, session: Session, envelope: Envelope) -> Message | None:
        message = envelope.message
        if isinstance(message, Meet):
            if message.predicting:
                session.phase, self._party, self._learns = Phase.PREDICT, self.trained(), False
            return Ready(self.width, len(self.order))
        if isinstance(message, Begin):
            return self._begun(session, message)
        if self._party is None or not (self._learns or isinstance(message, Infer)):
            raise PeerError(f"{session.peer} sent '{message.kind}' before it began")
        if isinstance(message, Ask | Infer | Gradients):
            return self._numbers(session, self._party, message)
        return self._kept(session, self._party, message)

    def _begun(self, session: Session, message: Begin) -> Message:
        if message.total_steps < 1:
            raise PeerError(f"{session.peer} asked for a training of {message.total_steps} steps; it needs at least 1")
        self._party, self._learns = None, False
        try:
            self._party = self.start(message)
        except PolicyError as fault:  # others may still ask
            return Done(str(fault))
        self._learns, self._steps, self._studies = True, message.total_steps, message.study
        return Done("")

    def _numbers(self, session: Session, party: LocalSecondary, message: Ask | Infer | Gradients) -> Message | None:
        if isinstance(message, Gradients):
            self._descend(session, party, message)
            return None
        rows = self._rows(session, party, message)
        if isinstance(message, Infer):
            values, step, asked = party.infer(rows), OUTSIDE_TRAINING, message.sealed.tobytes()
        else:
            values, step, asked = party.activations(rows, message.step), message.step, b"step %d" % message.step
        if self.noise is not None:  # the same for the same weights, so that two answers share noise only if equal
            occasion = weights_occasion(party.model.network.state_dict(), asked)
            values = self.noise.noisy(values.cpu(), message.rows, occasion)
        return Activations(step, values=pack_tensor(values, self.form))

    def _descend(self, session: Session, party: LocalSecondary, message: Gradients) -> None:
        try:
            party.descend(self._gradients(session, message), message.step)
        except SettingError as fault:
            raise PeerError(
                f"{session.peer} sent gradients of step {message.step}, which is not that of the activations; the "
                "weights were left as they are"
            ) from fault

    def _kept(self, session: Session, party: LocalSecondary, message: Message) -> Message | None:
        self._check_place(session, party, message)
        if isinstance(message, KeepBest):
            party.keep_best()
        elif isinstance(message, UseBest) and party.model.best:
            party.use_best()
        elif isinstance(message, ForgetBefore):
            party.forget_before(message.step)
        elif isinstance(message, Save):
            _save_checkpoint(party, message.step)
            return Done("")
        elif isinstance(message, Restore):
            return Done(_restore_fault(party, message.step))
        elif isinstance(message, Finish):
            session.phase = Phase.END
            self.finish(party)
            return Done("")
        else:
            raise PeerError(f"{session.peer} sent '{message.kind}', which has no place here")
        return None

    def _check_place(self, session: Session, party: LocalSecondary, message: Message) -> None:
        if self._studies and isinstance(message, Save | Restore | ForgetBefore | Finish):
            raise PeerError(f"{session.peer} sent '{message.kind}' in a study, of which nothing is kept")
        if isinstance(message, Save | Restore | ForgetBefore) and not 0 <= message.step <= self._steps:
            raise PeerError(f"{session.peer} sent '{message.kind}' of step {message.step} in {self._steps} steps")
        if isinstance(message, UseBest | Restore) and party.pending_shape is not None:
            raise PeerError(f"{session.peer} sent '{message.kind}' where gradients are due")

    def _rows(self, session: Session, party: LocalSecondary, message: Ask | Infer) -> Tensor:
        rows, order = message.rows, self.order.opened(message.sealed if isinstance(message, Infer) else NO_BYTES)
        if len(rows) > len(order) or (len(rows) and (rows.min() < 0 or rows.max() >= len(order))):
            raise PeerError(f"{session.peer} asked for rows that there are not; rows count from zero")
        return torch.from_numpy(order[rows]).to(party.model.device)

    def _gradients(self, session: Session, message: Gradients) -> Tensor:
        values, expected = unpack_tensor(message.values, self.form), self._party.pending_shape if self._party else None
        if values is None or tuple(values.shape) != expected:
            raise PeerError(
                f"{session.peer} sent gradients of step {message.step} that are not finite numbers of the shape of the "
                "activations; the weights were left as they are"
            )
        return values


def _save_checkpoint(party: LocalSecondary, step: int) -> None:
    """The primary says when old checkpoints may go, but our disk is not filled for its sake."""
    party.save(step)
    if party.checkpoint_store:
        party.forget_before(party.checkpoint_store.steps()[-MAX_CHECKPOINTS:][0])


def _restore_fault(party: LocalSecondary, step: int) -> str:
    """What kept the checkpoint from being read, without naming our folders."""
    try:
        party.restore(step)
    except DamagedCheckpoint:
        return f"its checkpoint of step {step} cannot be read"
    return ""
