"""The primary's side of the protocol: links from the coordinator, and remote secondaries.

Letters: n primary records, K partners, U distinct rows, C width of the cut layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import PeerError
from fedsim.protocol.codec import NO_BYTES
from fedsim.protocol.cut_layer import CutNoise, WireFormat, pack_tensor, unpack_tensor, values_occasion
from fedsim.protocol.messages import (
    OUTSIDE_TRAINING,
    Activations,
    Ask,
    Begin,
    Done,
    Finish,
    ForgetBefore,
    Gradients,
    Infer,
    KeepBest,
    Meet,
    Message,
    NewQueries,
    Offer,
    Partners,
    Phase,
    Queries,
    Ready,
    Restore,
    Save,
    Unchanged,
    UseBest,
    Want,
)
from fedsim.protocol.session import Session
from fedsim.splitnn.checkpoint_store import DamagedCheckpoint
from fedsim.types import EncodedTable

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class EncodedQueries:
    """Encoded identifiers of the primary for one list; ``counted`` marks its training records."""

    partner_list: str
    encoded: EncodedTable
    counted: NDArray[np.bool_]
    digest: str


def fetch_partners(session: Session, table: EncodedQueries, have: str) -> Partners | None:
    """The partners of every record; nothing where those in hand (``have`` is their digest) still hold."""
    request = session.post(Offer(table.partner_list, table.digest, have))
    if session.fetch(request, Want).wanted:
        encoded = table.encoded
        request = session.post(
            Queries(
                table.partner_list,
                encoded.fingerprint,
                encoded.n_bits,
                bits=encoded.bits,
                counted=table.counted.astype(np.uint8),
            )
        )
    answer = session.fetch(request, Message)
    if isinstance(answer, Unchanged):
        return None
    return _check_partners(session, answer, table.partner_list, len(table.encoded))


def fetch_new_partners(session: Session, partner_list: str, encoded: EncodedTable) -> Partners:
    """The partners of records that took no part in training."""
    answer = session.call(NewQueries(partner_list, encoded.fingerprint, encoded.n_bits, bits=encoded.bits), Message)
    if isinstance(answer, Done):
        raise PeerError(f"{session.peer} made no links of '{partner_list}': {answer.fault}")
    return _check_partners(session, answer, partner_list, len(encoded))


def _check_partners(session: Session, answer: Message, partner_list: str, n_records: int) -> Partners:
    fits = (
        isinstance(answer, Partners)
        and answer.partner_list == partner_list
        and len(answer.partner) == n_records
        and answer.partner.size > 0
        and answer.partner.min() >= 0
        and answer.partner.max() < answer.n_candidates
        and bool(np.isfinite(answer.similarity).all())
    )
    if not fits or not isinstance(answer, Partners):
        raise PeerError(f"{session.peer} sent links of '{partner_list}' that do not fit the {n_records} records")
    return answer


@dataclass(frozen=True)
class ComparisonRun:
    """A training to compare with: its seed, and whether the secondary's feature rows are shuffled in it."""

    seed: int
    placebo: bool = False


class RemoteSecondary:
    """A secondary in another process; implements :class:`fedsim.splitnn.secondary_model.Secondary` by messages.

    Gradients, and what needs no answer, are sent without waiting: the next answer shows that they arrived.
    """

    def __init__(
        self,
        session: Session,
        form: WireFormat,
        *,
        predicting: bool = False,
        noise: CutNoise | None = None,
        device: torch.device = CPU,
        study: ComparisonRun | None = None,
    ) -> None:
        self.session, self.form, self.noise, self.device, self.study = session, form, noise, device, study
        self.name = session.peer.name
        ready = session.call(Meet(predicting), Ready)
        if ready.width < 1 or ready.n_records < 1:
            raise PeerError(f"{session.peer} has a cut layer of {ready.width} for {ready.n_records} records")
        self.width, self.n_records = ready.width, ready.n_records
        self._rows: NDArray[Any] = np.zeros(0, np.int32)  # asked for last
        self._sealed: NDArray[Any] = NO_BYTES
        self._asked: tuple[int, int, int] | None = None  # step, rows, sequence

    def use_partners(self, partners: Partners) -> None:
        """Ask about these partners from now on; where rows are hidden, only the secondary knows which they are."""
        self.n_records, self._sealed = partners.n_candidates, np.array(partners.sealed)

    def begin(self, total_steps: int) -> None:
        self._asked = None
        message = Begin(total_steps)
        if self.study is not None:
            message = Begin(total_steps, study=True, seed=self.study.seed, placebo=self.study.placebo)
        fault = self.session.call(message, Done).fault
        if fault:
            raise PeerError(fault)

    def ask(self, rows: Tensor, step: int | None) -> None:
        self._rows = _row_numbers(rows)
        message: Message = Infer(self._rows, self._sealed) if step is None else Ask(step, rows=self._rows)
        self._asked = OUTSIDE_TRAINING if step is None else step, len(rows), self.session.post(message)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        return self._fetched(rows, step)

    def infer(self, rows: Tensor) -> Tensor:
        return self._fetched(rows, None)

    def descend(self, gradients: Tensor, step: int) -> None:
        if self.noise is not None:
            sent = gradients.cpu()
            occasion = values_occasion(f"gradients of step {step} to {self.session.peer}", sent)
            gradients = self.noise.protected(sent, self._rows, occasion)
        self.session.post(Gradients(step, values=pack_tensor(gradients, self.form)))

    def keep_best(self) -> None:
        self.session.post(KeepBest())

    def use_best(self) -> None:
        self.session.post(UseBest())

    def save(self, step: int) -> None:
        self.session.call(Save(step), Done)

    def restore(self, step: int) -> None:
        fault = self.session.call(Restore(step), Done).fault
        if fault:
            raise DamagedCheckpoint(f"{self.session.peer}: {fault}")

    def forget_before(self, step: int) -> None:
        self.session.post(ForgetBefore(step))

    def finish(self) -> None:
        """Have the secondary save its part of the model."""
        send_finish(self.session)

    def _fetched(self, rows: Tensor, step: int | None) -> Tensor:
        wanted = OUTSIDE_TRAINING if step is None else step
        if self._asked is None or self._asked[:2] != (wanted, len(rows)):
            self.ask(rows, step)
        asked, self._asked = self._asked, None
        reply = self.session.fetch(asked[2] if asked else 0, Activations)
        values = unpack_tensor(reply.values, self.form)
        if reply.step != wanted or values is None or values.shape != (len(rows), self.width):
            when = "outside training" if step is None else f"of step {step}"
            raise PeerError(
                f"{self.session.peer} sent activations {when} that are not {len(rows)} rows of {self.width} finite "
                "numbers; nothing was learnt from them"
            )
        return values.to(self.device)


def send_finish(session: Session) -> None:
    """Say that training has ended, and wait until that is safely written there."""
    session.phase = Phase.END
    session.call(Finish(), Done)


def _row_numbers(rows: Tensor) -> NDArray[Any]:
    return rows.to(torch.int32).cpu().numpy()
