"""The primary's side of the protocol: links from the coordinator, remote secondaries, and their encrypted tables.

Letters: n primary records, K partners, U distinct rows, C width of the cut layer.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import FingerprintError, PeerError
from fedsim.linkage.direct.oprf import MAX_BATCH, EvaluatedBatch
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.linkage.search.runner import distinct_records
from fedsim.protocol import cut_layer, messages as m, transport
from fedsim.protocol.session import Session
from fedsim.protocol.transport import MAX_TABLE_BYTES
from fedsim.splitnn.party_model import DamagedCheckpoint
from fedsim.splitnn.secondary_model import INFERENCE_ROWS
from fedsim.storage.files import append_durably, ensure_folder, remove_paths
from fedsim.storage.tensor_file import scratch_array
from fedsim.types import Bits, EncodedTable, Flags, Floats32, Integers32, Links

CPU = torch.device("cpu")
DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class EncodedQueries:
    """Encoded identifiers of the primary for one list; ``counted`` marks its training records."""

    partner_list: str
    encoded: EncodedTable
    counted: Flags
    digest: str
    terms: LinkageConfig


def fetch_partners(session: Session, table: EncodedQueries, have: str) -> Links | None:
    """Request the partners of every record; return None if those with the digest ``have`` are still valid."""
    request, encoded = session.send(m.Offer(table.partner_list, table.digest, have)), table.encoded
    if session.wait_reply(request, m.Want).wanted:
        facts, counted = (table.partner_list, encoded.fingerprint, encoded.n_bits), table.counted.astype(np.uint8)
        request = session.send(m.Queries(*facts, bits=encoded.bits, counted=counted))
    answer = session.wait_reply(request, m.Message)
    if isinstance(answer, m.Unchanged):
        return None
    name, terms = table.partner_list, table.terms
    first, place = distinct_records(encoded.bits)
    if isinstance(answer, m.Partners) and len(answer.partner) == len(first):
        answer = replace(answer, partner=answer.partner[place], similarity=answer.similarity[place])
    found = _check_partners(session, answer, name, len(encoded), terms, table.counted)
    return Links(found.partner, found.similarity)


def fetch_new_partners(session: Session, partner_list: str, encoded: EncodedTable, terms: LinkageConfig) -> Links:
    """Request the partners of records that took no part in training."""
    queries = m.NewQueries(partner_list, encoded.fingerprint, encoded.n_bits, bits=encoded.bits)
    answer = session.call(queries, m.Message)
    if isinstance(answer, m.Done):
        raise PeerError(f"{session.peer} cannot link '{partner_list}': {answer.fault}", code="not-linked")
    found = _check_partners(session, answer, partner_list, len(encoded), terms, None)
    # Arrays of a message are read-only views.
    return Links(np.array(found.partner, np.int64), np.array(found.similarity, np.float64), np.array(found.sealed))


def _check_partners(
    session: Session, answer: m.Message, partner_list: str, n_records: int, terms: LinkageConfig, counted: Flags | None
) -> m.Partners:
    """Return the links if they are those that the terms of the job allow; ``counted`` is None for new records."""
    if (
        isinstance(answer, m.Partners)
        and answer.partner_list == partner_list
        and answer.partner.shape == (n_records, terms.k)
        and _numbers_fit(answer)
        and answer.similarity.shape[2] == 1
        and not np.isinf(answer.similarity).any()
        and not np.isnan(answer.similarity).all(axis=2).any()  # single fields may be missing
        and bool(len(answer.sealed)) == (counted is None)
    ):
        return answer
    rule = f"the {n_records} records and the terms of the job (k={terms.k})"
    fault = f"{session.peer} sent links of '{partner_list}' that do not fit {rule}"
    raise PeerError(fault, code="bad-links")


def _numbers_fit(answer: m.Partners) -> bool:
    partner, n = answer.partner, answer.n_candidates
    if not partner.size or partner.min() < 0 or partner.max() >= n:
        return False
    listed = np.sort(partner, axis=1)
    return bool((listed[:, 1:] > listed[:, :-1]).all())


@dataclass(frozen=True)
class ComparisonRun:
    """A training run to compare with: its seed, and whether the secondary shuffles its feature rows."""

    seed: int
    placebo: bool = False


class RemoteSecondary:
    """A secondary in another process; implements :class:`fedsim.splitnn.secondary_model.Secondary` by messages.

    Gradients and commands without a reply are sent without waiting; the next reply shows that they arrived.
    """

    def __init__(
        self,
        session: Session,
        form: cut_layer.WireFormat,
        *,
        predicting: bool = False,
        device: torch.device = CPU,
        study: ComparisonRun | None = None,
        folder: Path | None = None,
    ) -> None:
        self.session, self.form, self.device, self.study = session, form, device, study
        self.folder = folder  # for answers that are too large for memory
        self.name = session.peer.name
        ready = session.call(m.Meet(predicting), m.Ready)
        if ready.width < 1 or ready.n_records < 1:
            fault = f"{session.peer} reports a cut layer of width {ready.width} for {ready.n_records} records"
            raise PeerError(fault, code="bad-width")
        self.width, self.n_records = ready.width, ready.n_records
        self._sealed: Bits = transport.NO_BYTES
        self._embedding_width: int | None = None
        self._request: tuple[int, int, int] | None = None  # step, number of rows, sequence number

    def use_permit(self, permit: Bits) -> None:
        """Show this permit with all further requests outside training."""
        self._sealed = permit

    def begin(self, total_steps: int) -> None:
        self._request = None
        message = m.Begin(total_steps)
        if self.study is not None:
            message = m.Begin(total_steps, study=True, seed=self.study.seed, placebo=self.study.placebo)
        fault = self.session.call(message, m.Done).fault
        if fault:
            raise PeerError(fault, code="training-refused")

    def ask(self, rows: Tensor, step: int | None) -> None:
        rows = rows if step is not None else rows[: self._rows_per_request]
        named = rows.to(torch.int32).cpu().numpy()
        message = m.Infer(named, self._sealed) if step is None else m.Ask(step, rows=named)
        self._request = m.OUTSIDE_TRAINING if step is None else step, len(rows), self.session.send(message)

    def activations(self, rows: Tensor, step: int) -> Tensor:
        return self._fetch(rows, step)

    def infer(self, rows: Tensor) -> Tensor:
        if len(rows) <= self._rows_per_request:
            return self._fetch(rows, None)
        values = torch.from_numpy(scratch_array((len(rows), self.width), np.float32, self.folder))
        for here, part in zip(values.split(self._rows_per_request), rows.split(self._rows_per_request), strict=True):
            here.copy_(self._fetch(part, None))
        return values.to(self.device)

    @property
    def _rows_per_request(self) -> int:
        """The most rows of one request outside training; the coordinator's word for new links holds for all of them."""
        return transport.MAX_DIMENSION if len(self._sealed) else INFERENCE_ROWS

    def descend(self, gradients: Tensor, step: int) -> None:
        self.session.send(m.Gradients(step, values=cut_layer.pack_tensor(gradients, self.form)))

    def embed(self, rows: Integers32) -> Floats32:
        """Return the embedding of these distinct rows, (U,) -> (U, W); its width is that of the first answer."""
        reply = self.session.call(m.Embed(rows, self._sealed), m.Activations)
        values = cut_layer.unpack_tensor(reply.values, self.form, (len(rows), self._embedding_width))
        if reply.step != m.OUTSIDE_TRAINING or values is None:
            fault = f"an embedding that is not {len(rows)} equally wide rows of numbers up to {self.form.most:g}"
            raise PeerError(f"{self.session.peer} sent {fault}; it was not used", code="bad-embedding")
        self._embedding_width = values.shape[1]
        return values.numpy()

    def keep_best(self) -> None:
        self.session.send(m.KeepBest())

    def use_best(self) -> None:
        self.session.send(m.UseBest())

    def save(self, step: int) -> None:
        self.session.call(m.Save(step), m.Done)

    def restore(self, step: int) -> None:
        fault = self.session.call(m.Restore(step), m.Done).fault
        if fault:
            raise DamagedCheckpoint(f"{self.session.peer}: {fault}")

    def forget_before(self, step: int) -> None:
        self.session.send(m.ForgetBefore(step))

    def finish(self) -> None:
        """Have the secondary save its part of the model."""
        send_finish(self.session)

    def _fetch(self, rows: Tensor, step: int | None) -> Tensor:
        expected = m.OUTSIDE_TRAINING if step is None else step
        if self._request is None or self._request[:2] != (expected, len(rows)):
            self.ask(rows, step)
        request, self._request = self._request, None
        reply = self.session.wait_reply(request[2] if request else 0, m.Activations)
        values = cut_layer.unpack_tensor(reply.values, self.form, (len(rows), self.width))
        if reply.step != expected or values is None:
            when = "outside training" if step is None else f"of step {step}"
            fault = f"activations {when} that are not {len(rows)} rows of {self.width} numbers up to {self.form.most:g}"
            raise PeerError(f"{self.session.peer} sent {fault}; they were not used", code="bad-activations", step=step)
        return values.to(self.device)


def send_finish(session: Session) -> None:
    """Report that training is complete and wait until the peer has saved everything."""
    session.phase = m.Phase.END
    session.call(m.Finish(), m.Done)


# Without a coordinator: the secondary's encrypted table, and evaluations of tokens


def fetch_table(session: Session, path: Path, handed_over: str = "") -> str:
    """Fetch the secondary's encrypted table to a file, unless it is there, and return its digest.

    An interrupted transfer continues where it stopped, also in another process. A table with the digest ``handed_over``
    was not sent but handed over as a file: if the secondary has another one now, this is an error.
    """
    have = file_digest(path) if path.is_file() else ""
    part = next(path.parent.glob(f"{path.name}.*.part"), None)
    start = 0 if part is None else part.stat().st_size
    kept = bool(have) and have == handed_over  # then no part is asked for
    answer = session.call(m.FetchTable(have, MAX_TABLE_BYTES if kept else start), m.TablePart)
    if have and answer.digest == have:
        return have
    if kept:
        message = f"{session.peer} has another table now than the one that it handed over as a file"
        hint = "its key, rows, features or min_list_rows changed: give its present file with --table"
        raise FingerprintError(f"{message}; {hint}, or start with --again to fetch it", code="other-table")
    digest = answer.digest
    if not DIGEST.fullmatch(digest):
        raise PeerError(f"{session.peer} sent a table without a digest", code="bad-table")
    if part != (part := path.with_name(f"{path.name}.{digest}.part")):  # another table, from its beginning
        remove_paths(path.parent.glob(f"{path.name}.*.part"))
        answer = session.call(m.FetchTable("", 0), m.TablePart) if start else answer
        start = 0
    ensure_folder(path.parent)
    while True:
        size, content = answer.size, answer.content
        end = start + len(content)
        if (answer.digest, answer.start) != (digest, start) or end > size or (not len(content) and end < size):
            raise PeerError(f"{session.peer} sent a part of another table, or of no table", code="bad-table")
        append_durably(part, content.tobytes(), mode=0o600, sync=False)
        start = end
        if start == size:
            break
        answer = session.call(m.FetchTable("", start), m.TablePart)
    if file_digest(part) != digest:
        part.unlink()
        raise PeerError(f"{session.peer} sent a table that does not have its digest; it was deleted", code="bad-table")
    part.replace(path)
    return digest


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def evaluate_remotely(session: Session, blinded: Sequence[bytes]) -> list[EvaluatedBatch]:
    """Have the secondary evaluate blinded tokens; the caller verifies the proofs."""
    points = np.frombuffer(b"".join(blinded), np.uint8).reshape(len(blinded), -1)
    answer = session.call(m.Evaluate(blinded=points), m.Evaluated)
    batches = range(0, len(blinded), MAX_BATCH)
    if answer.elements.shape != points.shape or len(answer.proofs) != len(batches):
        fault = f"{session.peer} sent {len(answer.elements)} evaluated tokens for {len(blinded)}"
        raise PeerError(f"{fault}; install the same release everywhere", code="bad-evaluation")
    elements = [element.tobytes() for element in answer.elements]
    proofs = (proof.tobytes() for proof in answer.proofs)
    return [EvaluatedBatch(elements[at : at + MAX_BATCH], proof) for at, proof in zip(batches, proofs, strict=True)]
