"""The linker of the paper: keyed filters go to the coordinator, pseudonyms and noisy similarities come back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.errors import FileError, PeerError
from fedsim.linkage.encoding.quality import ReceivedQuality, judge_received_links
from fedsim.linkage.private_linkage import load_private_links, save_private_links
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.roles.primary_role import EncodedQueries, fetch_new_partners, fetch_partners
from fedsim.protocol.transport import offer_digest
from fedsim.runs.run_folder import links_path
from fedsim.runtime.party_context import ReconnectingPeer
from fedsim.runtime.run_store import RunStore
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import EncodedTable, Integers, Links


@dataclass(frozen=True, eq=False)
class CoordinatorLinker:
    """Asks the coordinator of a job for the partners in one list, and keeps what it answered in the run folder.

    The coordinator keeps scale, noise and pseudonyms, so that it links new records like those of training. Partners are
    pseudonyms; those of new records come with the permit that their holders require.
    """

    store: RunStore
    secondary: str
    coordinator: ReconnectingPeer

    def link(self, records: PartyData, training: Integers) -> Links:
        encoded, path = self.store.encoded(records, self.secondary), self._path
        counted = np.zeros(len(encoded), dtype=bool)
        # Others learn how many records count, and under sealed labels that must not show how many have no label.
        counted[slice(None) if self.store.job.protection.sealed else training] = True
        saved = load_private_links(path) if path.is_file() else None
        have = "" if saved is None else arrays_digest(saved.partner, saved.similarity)
        digest, terms = offer_digest(encoded, counted.astype(np.uint8)), self.store.job.secondaries[self.secondary]
        queries = EncodedQueries(self.secondary, encoded, counted, digest, terms.linkage)
        answer = self.coordinator.ask(lambda session: fetch_partners(session, queries, have))
        if answer is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_private_links(answer, path)
            return load_private_links(path)
        if saved is None:
            raise PeerError("the coordinator reports no change, but sent no links before", code="unexpected-reply")
        return saved

    def encode_new(self, records: PartyData) -> EncodedTable:
        return self.store.encode_new(records, self.secondary)

    def link_new(self, queries: EncodedTable) -> Links:
        terms = self.store.job.secondaries[self.secondary].linkage
        return self.coordinator.ask(lambda session: fetch_new_partners(session, self.secondary, queries, terms))

    def quality(self, records: PartyData, links: Links) -> ReceivedQuality:
        terms, k, similarity = self.store.job.secondaries[self.secondary], links.k, links.overall
        ends = similarity[:, [0, *range(max(1, k - 2), k)]].astype(np.float64)  # the nearest and the two furthest
        encoded, noisy = self.store.encoded(records, self.secondary), bool(terms.tau or terms.sigma)
        return judge_received_links(terms.encoding, encoded, ends, noisy=noisy)

    @property
    def _path(self) -> Path:
        return links_path(self.store.folder, self.secondary)


def stored_links(store: RunStore, secondary: str) -> Links:
    """Return the links of a trained job."""
    path = links_path(store.folder, secondary)
    if not path.is_file():
        message = f"{store.folder} has no links of job '{store.job.name}'; train it first"
        raise FileError(message, code="not-trained")
    return load_private_links(path)
