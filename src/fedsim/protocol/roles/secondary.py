"""The secondary's side of the protocol: identifiers to the coordinator, its cut layer to the primary.

The primary requests rows by pseudonym, or by link if the job hides rows; the coordinator says which row is meant.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from fedsim.errors import PeerError, PolicyError, SettingError
from fedsim.protocol import cut_layer, messages as m, transport
from fedsim.protocol.session import Session
from fedsim.splitnn.party_model import DamagedCheckpoint
from fedsim.splitnn.secondary_model import LocalSecondary
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import Bits, EncodedTable, Integers32

MAX_CHECKPOINTS = 4


@dataclass(frozen=True, eq=False)
class RowMapping:
    """The row behind every pseudonym; with a key if the primary's numbers are those of its links."""

    rows: Integers32
    key: Bits

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def digest(self) -> str:
        """The digest that represents it in an Offer."""
        return arrays_digest(self.rows, self.key)

    def unseal(self, sealed: Bits) -> Integers32:
        """Return the rows of a request: those of training, or those that the coordinator sealed for it."""
        return transport.unseal_rows(self.key, sealed) if len(sealed) else self.rows


def fetch_row_mapping(session: Session, encoded: EncodedTable, digest: str, have: str) -> RowMapping | None:
    """Request the order of our rows; return None if the one with the digest ``have`` is still valid."""
    name, n_records = session.connection.party.name, len(encoded)
    request = session.send(m.Offer(name, digest, have))
    if session.wait_reply(request, m.Want).wanted:
        request = session.send(m.Candidates(name, encoded.fingerprint, encoded.n_bits, bits=encoded.bits))
    answer = session.wait_reply(request, m.Message)
    if isinstance(answer, m.Unchanged):
        return None
    if isinstance(answer, m.RowOrder):
        order, seal = answer.order, answer.seal
        if len(seal):  # rows are hidden: any existing rows, as often as they are linked
            in_range = len(order) > 0 and order.min() >= 0 and order.max() < n_records
            valid = len(seal) == transport.SEAL_KEY_BYTES and in_range
        else:  # every row once
            valid = len(order) == n_records and bool((np.sort(order) == np.arange(n_records)).all())
        if valid:
            return RowMapping(np.array(order), np.array(seal))
    raise PeerError(f"{session.peer} sent a row order that does not fit the {n_records} records", code="bad-row-order")


@dataclass(eq=False)
class SecondaryResponder:
    """Answers the primary.

    ``start`` builds a new network as a Begin requests, ``load_trained`` loads the saved one, ``finish`` saves one, and
    ``on_farewell`` runs when the primary is done.
    """

    width: int
    order: RowMapping
    start: Callable[[m.Begin], LocalSecondary]
    load_trained: Callable[[], LocalSecondary]
    finish: Callable[[LocalSecondary], None]
    on_farewell: Callable[[], None]
    form: cut_layer.WireFormat
    noise: cut_layer.CutNoise | None = None
    _party: LocalSecondary | None = field(default=None, init=False)
    _training: bool = field(default=False, init=False)
    _steps: int = field(default=0, init=False)
    _in_study: bool = field(default=False, init=False)  # nothing of the current training is saved

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
            if message.predicting:
                session.phase, self._party, self._training = m.Phase.PREDICT, self.load_trained(), False
            return m.Ready(self.width, len(self.order))
        if isinstance(message, m.Begin):
            if message.total_steps < 1:
                fault = f"{session.peer} requested a training of {message.total_steps} steps; the minimum is 1"
                raise PeerError(fault, code="bad-steps")
            self._party, self._training = None, False
            try:
                self._party = self.start(message)
            except PolicyError as error:  # the session continues: other requests may be allowed
                return m.Done(str(error))
            self._training, self._steps, self._in_study = True, message.total_steps, message.study
            return m.Done("")
        if self._party is None or not (self._training or isinstance(message, m.Infer)):
            raise PeerError(f"{session.peer} sent '{message.kind}' before 'begin'", code="not-begun")
        if isinstance(message, m.Gradients):
            self._descend(session, self._party, message)
            return None
        if isinstance(message, m.Ask | m.Infer):
            return self._activations(session, self._party, message)
        return self._control(session, self._party, message)

    def _activations(self, session: Session, party: LocalSecondary, message: m.Ask | m.Infer) -> m.Message:
        sealed = message.sealed if isinstance(message, m.Infer) else transport.NO_BYTES
        rows, order = message.rows, self.order.unseal(sealed)
        if len(rows) > len(order) or (len(rows) and (rows.min() < 0 or rows.max() >= len(order))):
            raise PeerError(f"{session.peer} requested rows that do not exist; rows count from zero", code="bad-rows")
        selected = torch.from_numpy(order[rows]).to(party.model.device)
        if isinstance(message, m.Infer):
            values, step, request = party.infer(selected), m.OUTSIDE_TRAINING, message.sealed.tobytes()
        else:
            values, step, request = party.activations(selected, message.step), message.step, b"step %d" % message.step
        if self.noise is not None:  # equal for equal weights, so that two answers share noise only if they are equal
            occasion = cut_layer.weights_occasion(party.model.network.state_dict(), request)
            values = self.noise.add_noise(values.cpu(), rows, occasion)
        return m.Activations(step, values=cut_layer.pack_tensor(values, self.form))

    def _descend(self, session: Session, party: LocalSecondary, message: m.Gradients) -> None:
        fault = f"{session.peer} sent gradients of step {message.step}"
        values = cut_layer.unpack_tensor(message.values, self.form)
        if values is None or tuple(values.shape) != party.pending_shape:
            fault += f" that are not numbers up to {self.form.most:g} in the shape of the activations"
            raise PeerError(f"{fault}; the weights did not change", code="bad-gradients", step=message.step)
        try:
            party.descend(values, message.step)
        except SettingError as error:
            fault += ", but the last activations are of another step"
            raise PeerError(f"{fault}; the weights did not change", code="bad-gradients") from error

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
            except DamagedCheckpoint:  # whose text names our folders
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
