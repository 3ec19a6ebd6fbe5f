"""What the primary of a job gets of its partners: rows that it fetches once, or activations at every step.

With sealed labels, rows are fetched once, kept, and trained on here. Nothing that depends on a label is sent: which
rows are requested follows from the links alone. Letters: n records, K partners, U rows, C width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim import errors
from fedsim.linkage.private_linkage import count_links
from fedsim.pipeline.fitted_model import LocalRows, PartnerInputs
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.roles.primary_role import RemoteSecondary
from fedsim.protocol.session import PeerRestarted, Session
from fedsim.runs.run_folder import (
    RETENTION,
    ROWS_FORMAT,
    delete_rows,
    released_path,
    retention_end,
    rows_path,
    timestamp,
)
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.runtime.run_store import RunStore
from fedsim.splitnn import Features
from fedsim.splitnn.secondary_model import SecondaryConfig, restore_secondary
from fedsim.storage.tensor_file import load_tensors, save_tensors, scratch_array
from fedsim.training import NeighbourList, SecondaryData
from fedsim.training.boosted_trees import EmbeddedPartners
from fedsim.training.loop import TrainingContext
from fedsim.types import AnyArray, Floats32, Integers, Integers32, Links

log = logging.getLogger("fedsim.parties")

ROWS_PER_REQUEST = 65_536


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a secondary by pseudonym; ``many_valued`` are the columns that a network may spread over quantiles."""

    pseudonym: Integers32  # (U,), ascending
    values: Floats32  # (U, C)
    many_valued: Integers
    received: str  # when the first of them was, ISO 8601: from then on the retention counts

    @classmethod
    def load(cls, path: Path) -> StoredRows:
        """Load what :meth:`save` wrote."""
        found, facts = load_tensors(path, ROWS_FORMAT)
        return cls(found["pseudonym"], found["values"], found["many_valued"], facts["received"])

    def save(self, path: Path) -> None:
        """Save the rows for their receiver alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, AnyArray] = {"pseudonym": self.pseudonym, "values": self.values}
        tensors["many_valued"] = self.many_valued
        save_tensors(path, ROWS_FORMAT, tensors, {"received": self.received})

    @property
    def features(self) -> Features:
        """The rows as features of a network at the primary."""
        return Features(self.values, spread=tuple(self.many_valued.tolist()))

    def places(self, partner: AnyArray) -> Integers:
        """Return the place of every partner among the stored rows, (n, K); -1 for no partner."""
        return np.where(partner < 0, -1, np.searchsorted(self.pseudonym, partner))

    def missing(self, partner: AnyArray) -> Integers32:
        """Return the rows among these partners that are not stored, ascending."""
        return np.setdiff1d(partner[partner >= 0], self.pseudonym).astype(np.int32)

    def extend(self, pseudonym: Integers32, values: Floats32, now: datetime) -> StoredRows:
        """Return these and further rows, which were received now."""
        rows, every = np.concatenate([self.pseudonym, pseudonym]), np.concatenate([self.values, values])
        order = np.argsort(rows)
        received = self.received if len(self.pseudonym) else timestamp(now)
        return StoredRows(rows[order], every[order], self.many_valued, received)


@lru_cache(maxsize=8)
def _read_rows(path: Path, inode: int, written: int) -> StoredRows:
    """Load rows once as long as their file, which is replaced as a whole, is the same: new records need them often."""
    return StoredRows.load(path)


def load_rows(context: PartyContext, name: str, now: datetime) -> StoredRows:
    """Load the stored rows of a secondary; if their retention has ended, they are deleted first."""
    path = rows_path(context.folder, name)
    status = path.stat() if path.is_file() else None
    rows = _read_rows(path, status.st_ino, status.st_mtime_ns) if status else StoredRows.load(path)
    if len(rows.pseudonym) and retention_end(rows.received, context.job.protection.retention) <= now:
        delete_rows(context.job, context.party_file, name, RETENTION, now)
        _read_rows.cache_clear()
        log.warning("the retention of the rows of %s has ended; they were deleted", name)
        return StoredRows.load(path)
    return rows


def remote_secondary(context: PartyContext, session: Session, **options: Any) -> RemoteSecondary:
    """Return a secondary of the job over a session; it answers in the job's wire format."""
    return RemoteSecondary(session, wire_format(context.job.training.wire), folder=context.folder, **options)


def fetch_rows(remote: RemoteSecondary, wanted: Integers32) -> Floats32:
    """Request rows from a secondary, a part at a time."""
    return _in_parts(lambda rows: remote.infer(torch.from_numpy(rows)).numpy(), wanted, remote.folder)


def fetch_embedded(remote: RemoteSecondary, neighbours: Links) -> EmbeddedPartners:
    """Request the embedding of all partners in a list from a secondary that sends activations too."""
    wanted = np.flatnonzero(count_links(neighbours.partner, remote.n_records)).astype(np.int32)
    place = np.zeros(remote.n_records, np.int32)
    place[wanted] = np.arange(len(wanted), dtype=np.int32)
    partner = scratch_array(neighbours.partner.shape, np.int32, remote.folder)
    for first in range(0, len(partner), ROWS_PER_REQUEST):
        here = slice(first, first + ROWS_PER_REQUEST)
        partner[here] = place[neighbours.partner[here]]
    return EmbeddedPartners(_in_parts(remote.embed, wanted, remote.folder), Links(partner, neighbours.similarity))


def _in_parts(fetch: Callable[[Integers32], Floats32], wanted: Integers32, folder: Path | None) -> Floats32:
    """Fetch rows by several requests, into a file if they are many; the first answer shows how wide they are."""
    found = fetch(wanted[:ROWS_PER_REQUEST])
    if len(wanted) <= ROWS_PER_REQUEST:
        return found
    rows = scratch_array((len(wanted), found.shape[1]), np.float32, folder)
    rows[:ROWS_PER_REQUEST] = found
    for first in range(ROWS_PER_REQUEST, len(wanted), ROWS_PER_REQUEST):
        here = slice(first, first + ROWS_PER_REQUEST)
        rows[here] = fetch(wanted[here])
    return rows


RowsOf = Callable[[RemoteSecondary, Integers32], Floats32]  # the vectors of rows by pseudonym


def load_or_fetch_rows(
    context: PartyContext, peer: ReconnectingPeer, party: Party, links: Links, rows_of: RowsOf = fetch_rows
) -> StoredRows:
    """Return the linked rows of a secondary, from the secondary or from what it sent before; then let it go."""
    path = rows_path(context.folder, party.name)
    released = released_path(path)

    def stored() -> StoredRows | None:
        rows = load_rows(context, party.name, datetime.now(UTC)) if path.is_file() else None
        return None if rows is None or len(rows.missing(links.partner)) else rows

    rows = stored()
    while rows is None or not released.is_file():
        try:
            remote = remote_secondary(context, peer.session())
            if rows is None:
                wanted, now = np.unique(links.partner).astype(np.int32), datetime.now(UTC)
                values = rows_of(remote, wanted)
                many_valued = np.array(Features(values).many_valued, np.int64)
                rows = StoredRows(wanted, values, many_valued, timestamp(now))
                rows.save(path)
                until = timestamp(retention_end(rows.received, context.job.protection.retention))
                facts = {"peer": str(party), "rows": len(wanted), "columns": remote.width, "delete_by": until}
                context.connection.record_event("rows received", facts)
            remote.finish()
            released.touch()
        except PeerRestarted as restarted:
            log.warning("%s; requesting its rows again", restarted)
        except errors.AwayError:
            if rows is None:
                raise
            released.touch()  # it left after it had sent everything
    return rows


def stored_partners(
    context: PartyContext, peer: ReconnectingPeer, name: str, links: Links, rows_of: RowsOf = fetch_rows
) -> LocalRows:
    """Return the linked rows of a secondary, which are here from now on."""
    rows = load_or_fetch_rows(context, peer, Party(Role.SECONDARY, name), links, rows_of)
    partner = rows.places(links.partner)
    return LocalRows([SecondaryData(rows.features, partner, links.similarity, name)], rows.values)


@dataclass(eq=False)
class RemoteRows:
    """Partners in one list whose rows stay with the secondary."""

    context: PartyContext
    peer: ReconnectingPeer
    links: Links
    _holder: RemoteSecondary | None = None

    def open(self, training_context: TrainingContext) -> NeighbourList:
        """Return the list with the secondary over its present session."""
        self._holder = remote_secondary(self.context, self.peer.session(), device=training_context.device)
        return NeighbourList(self.links, (self._holder,))

    def embedded(self) -> EmbeddedPartners | None:
        """Request the embedding of all partners, if the job has one."""
        if self._holder is None or not self.context.job.sends_embedding:
            return None
        return fetch_embedded(self._holder, self.links)

    def finish(self) -> None:
        """Let the secondary save its part."""
        if self._holder is not None:
            self._holder.finish()


# Partners of new records, for predictions


Wait = Callable[[Iterable[str]], tuple[str, ...]]  # which of these secondaries stay away, if the model can do without


@dataclass(eq=False)
class RemotePartners:
    """Rows that stay with the secondary, which answers every request."""

    context: PartyContext
    name: str
    peer: ReconnectingPeer
    wait: Wait
    embeds: bool  # whether trees see the partners
    _holder: RemoteSecondary | None = None

    def absent(self, queries: Any) -> tuple[str, ...]:
        absent = self.wait([self.name])
        session = None if absent else self.peer.session()
        if session is not None and (self._holder is None or self._holder.session is not session):
            self._holder = remote_secondary(self.context, session, predicting=True)
        return absent

    def inputs(self, links: Links) -> PartnerInputs | None:
        if self._holder is None:
            return None
        self._holder.use_permit(links.permit)
        return PartnerInputs(links, (self._holder,), fetch_embedded(self._holder, links) if self.embeds else None)


@dataclass(frozen=True, eq=False)
class StoredPartners:
    """Rows that the job stored.

    ``more`` returns the vectors of rows that are not stored, or None if that is not possible now; ``away`` names
    secondaries that records require before they are linked.
    """

    context: PartyContext
    name: str
    config: SecondaryConfig
    more: Callable[[Integers32, Links], Floats32 | None]
    away: Callable[[Any], tuple[str, ...]] = lambda queries: ()

    def absent(self, queries: Any) -> tuple[str, ...]:
        return self.away(queries)

    def inputs(self, links: Links) -> PartnerInputs | None:
        now = datetime.now(UTC)
        rows = load_rows(self.context, self.name, now)
        missing = rows.missing(links.partner)
        if len(missing):
            values = self.more(missing, links)
            if values is None:
                return None
            rows = rows.extend(missing, values, now)
            rows.save(rows_path(self.context.folder, self.name))
        weights, _ = RunStore.of(self.context).load_weights(partner_model(self.name))
        holder = restore_secondary(self.name, rows.features, self.config, weights)
        found = Links(rows.places(links.partner), links.similarity)
        return PartnerInputs(found, (holder,), EmbeddedPartners(rows.values, found))


def partner_model(name: str) -> str:
    """Return the name of the primary's weights over the rows of a secondary."""
    return f"{name}-partner"
