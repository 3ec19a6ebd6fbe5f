"""The secondary's side of the conversations: its identifiers to the coordinator, its cut layer to the primary.

Rows are asked for by pseudonym; the features lie in that order, so a pseudonym is a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import PeerError
from fedsim.protocol.codec import Envelope
from fedsim.protocol.messages import (
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
from fedsim.protocol.tensors import Form, packed, unpacked
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.splitnn.shelf import DamagedCheckpoint
from fedsim.types import EncodedTable

OUTSIDE_TRAINING = -1


def fetch_order(session: Session, encoded: EncodedTable, digest: str, have: str) -> NDArray[np.int32] | None:
    """Which of our rows every pseudonym stands for; nothing where the order in hand still holds."""
    name = session.station.party.name
    request = session.post(Offer(name, digest, have))
    if session.fetch(request, Want).wanted:
        request = session.post(Candidates(name, encoded.fingerprint, encoded.n_bits, bits=encoded.bits))
    answer = session.fetch(request, Message)
    if isinstance(answer, Unchanged):
        return None
    if not isinstance(answer, RowOrder) or not _is_order(answer.order, len(encoded)):
        raise PeerError(f"{session.peer} sent an order of rows that does not fit the {len(encoded)} records")
    return np.array(answer.order)


def _is_order(order: NDArray[Any], n_records: int) -> bool:
    return len(order) == n_records and bool((np.sort(order) == np.arange(n_records)).all())


@dataclass(eq=False)
class BelowTheCut:
    """Answers the primary. ``start`` builds the network anew for so many steps, ``trained`` brings the saved one."""

    width: int
    n_records: int
    start: Callable[[int], LocalSecondary]
    trained: Callable[[], LocalSecondary]
    finish: Callable[[LocalSecondary], None]
    form: Form
    _party: LocalSecondary | None = field(default=None, init=False)

    def talk(self, session: Session) -> bool:
        """Answer until the primary says farewell (then true) or the conversation ends by an exception."""
        while True:
            envelope = session.next()
            if isinstance(envelope.message, Farewell):
                return True
            reply = self._reply(session, envelope)
            if reply is not None:
                session.post(reply, reply_to=envelope.sequence)

    def _reply(self, session: Session, envelope: Envelope) -> Message | None:
        message = envelope.message
        if isinstance(message, Meet):
            if message.predicting:
                session.phase, self._party = Phase.PREDICT, self.trained()
            return Ready(self.width, self.n_records)
        if isinstance(message, Begin):
            self._party = self.start(message.total_steps)
            return Done("")
        if self._party is None:
            raise PeerError(f"{session.peer} sent '{message.kind}' before it began")
        if isinstance(message, Ask | Infer | Gradients):
            return self._numbers(session, self._party, message)
        return self._kept(session, self._party, message)

    def _numbers(self, session: Session, party: LocalSecondary, message: Ask | Infer | Gradients) -> Message | None:
        if isinstance(message, Gradients):
            party.descend(self._gradients(session, message), message.step)
            return None
        rows = self._rows(session, party, message)
        if isinstance(message, Infer):
            return Activations(OUTSIDE_TRAINING, values=packed(party.infer(rows), self.form))
        return Activations(message.step, values=packed(party.activations(rows, message.step), self.form))

    def _kept(self, session: Session, party: LocalSecondary, message: Message) -> Message | None:
        if isinstance(message, KeepBest):
            party.keep_best()
        elif isinstance(message, UseBest):
            party.use_best()
        elif isinstance(message, ForgetBefore):
            party.forget_before(message.step)
        elif isinstance(message, Save):
            party.save(message.step)
            return Done("")
        elif isinstance(message, Restore):
            return Done(_restored(party, message.step))
        elif isinstance(message, Finish):
            self.finish(party)
            return Done("")
        else:
            raise PeerError(f"{session.peer} sent '{message.kind}', which has no place here")
        return None

    def _rows(self, session: Session, party: LocalSecondary, message: Ask | Infer) -> Tensor:
        rows = message.rows
        if len(rows) > party.n_records or (len(rows) and (rows.min() < 0 or rows.max() >= party.n_records)):
            raise PeerError(f"{session.peer} asked for rows that there are not; rows count from zero")
        return torch.from_numpy(np.array(rows)).to(party.part.device)

    def _gradients(self, session: Session, message: Gradients) -> Tensor:
        values, expected = unpacked(message.values, self.form), self._party.pending_shape if self._party else None
        if values is None or tuple(values.shape) != expected:
            raise PeerError(
                f"{session.peer} sent gradients of step {message.step} that are not finite numbers of the shape of the "
                "activations; the weights were left as they are"
            )
        return values


def _restored(party: LocalSecondary, step: int) -> str:
    """What kept the checkpoint from being read, without naming our folders."""
    try:
        party.restore(step)
    except DamagedCheckpoint:
        return f"its checkpoint of step {step} cannot be read"
    return ""
