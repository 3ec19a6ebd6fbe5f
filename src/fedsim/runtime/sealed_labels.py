"""Sealed labels at the primary: the rows of secondaries are fetched once, kept, and trained on here.

Nothing that depends on a label is sent: which rows are requested follows from the links alone. Letters: n records,
K partners, U rows, C width.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedsim import errors
from fedsim.linkage.private_linkage import PrivateLinks
from fedsim.protocol.cut_layer import WireFormat
from fedsim.protocol.messages import Party
from fedsim.protocol.roles.primary import RemoteSecondary
from fedsim.protocol.session import PeerRestarted
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.splitnn import Features
from fedsim.storage.tensor_file import load_tensors, save_tensors
from fedsim.types import AnyArray, Floats32, Integers, Integers32

log = logging.getLogger("fedsim.parties")

FORMAT = "rows of a secondary 1"
ROWS_PER_REQUEST = 65_536


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a secondary by pseudonym; ``many_valued`` are the columns that a network may spread over quantiles."""

    pseudonym: Integers32  # (U,), ascending
    values: Floats32  # (U, C)
    many_valued: Integers

    @classmethod
    def load(cls, path: Path) -> StoredRows:
        """Load what :meth:`save` wrote."""
        found, _ = load_tensors(path, FORMAT)
        return cls(found["pseudonym"], found["values"], found["many_valued"])

    def save(self, path: Path) -> None:
        """Save the rows for their receiver alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, FORMAT, dict(vars(self)), {})

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

    def extend(self, pseudonym: Integers32, values: Floats32) -> StoredRows:
        """Return these and further rows."""
        rows, every = np.concatenate([self.pseudonym, pseudonym]), np.concatenate([self.values, values])
        order = np.argsort(rows)
        return StoredRows(rows[order], every[order], self.many_valued)


def rows_path(folder: Path, name: str) -> Path:
    """Return where the primary keeps the rows of a secondary."""
    return folder / "rows" / f"{name}.safetensors"


def fetch_rows(remote: RemoteSecondary, wanted: Integers32) -> Floats32:
    """Request rows from a secondary, a part at a time."""
    parts = [
        remote.infer(torch.from_numpy(wanted[first : first + ROWS_PER_REQUEST])).numpy()
        for first in range(0, len(wanted), ROWS_PER_REQUEST)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, remote.width), np.float32)


def load_or_fetch_rows(
    context: PartyContext, peer: ReconnectingPeer, party: Party, links: PrivateLinks, form: WireFormat
) -> StoredRows:
    """Return the linked rows of a secondary, from the secondary or from what it sent before; then let it go."""
    path = rows_path(context.folder, party.name)
    released = path.with_suffix(".released")
    while not released.is_file():
        try:
            remote = RemoteSecondary(peer.session(), form)
            if not path.is_file():
                wanted = np.unique(links.partner).astype(np.int32)
                values = fetch_rows(remote, wanted)
                StoredRows(wanted, values, np.array(Features(values).many_valued, np.int64)).save(path)
                facts = {"peer": str(party), "rows": len(wanted), "columns": remote.width}
                context.connection.record_event("rows received", facts)
            remote.finish()
            released.touch()
        except PeerRestarted as restarted:
            log.warning("%s; requesting its rows again", restarted)
        except errors.AwayError:
            if not path.is_file():
                raise
            released.touch()  # it left after it had sent everything
    return StoredRows.load(path)


def partner_model(name: str) -> str:
    """Return the name of the primary's weights over the rows of a secondary."""
    return f"{name}-partner"
