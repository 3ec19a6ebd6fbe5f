"""How the primary of a job finds partners and gets their rows: the one place that knows whether there is a coordinator.

With a coordinator, rows stay with their secondary or are fetched once; without one, records open them in the encrypted
table of the secondary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from fedsim.errors import PeerError
from fedsim.linkage.direct.token_schema import FieldTokens
from fedsim.linkage.encoding.quality import ReceivedQuality
from fedsim.pipeline.linker import Linker
from fedsim.pipeline.partner_features import NewPartners, PartnerFeatures
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Farewell, Role
from fedsim.protocol.roles.primary_role import RemoteSecondary, send_finish
from fedsim.protocol.session import Session
from fedsim.runs.deletion import released_path, rows_path
from fedsim.runtime.coordinator_linker import CoordinatorLinker
from fedsim.runtime.partner_rows import (
    RemotePartners,
    RemoteRows,
    StoredPartners,
    Wait,
    fetch_rows,
    remote_secondary,
    stored_partners,
)
from fedsim.runtime.party_context import FAILURE_NOTICE_SECONDS, PartyContext, ReconnectingPeer
from fedsim.runtime.run_store import RunStore
from fedsim.runtime.table_linker import TableLinker
from fedsim.splitnn.secondary_model import SecondaryConfig
from fedsim.training.boosted_trees import StackedTrees
from fedsim.types import Floats32, Integers32, Links

log = logging.getLogger("fedsim.parties")

FINISH_SECONDS = 120.0  # for a coordinator that restarts while training ends


class JobLinking(Protocol):
    """How the records of a job are linked with those of every secondary."""

    @property
    def linkers(self) -> Mapping[str, JobLinker]:
        """A linker for every secondary."""
        ...

    @property
    def online(self) -> bool:
        """Whether new records can be linked as far as it does not depend on secondaries."""
        ...

    def needing_partner(self, encoded: Mapping[str, Any]) -> Mapping[str, int]:
        """Return how many new records need each secondary online; nothing where a coordinator links all of them."""
        ...

    def join(self) -> None:
        """Connect with those that link, before any data is read, which compares job and release."""
        ...

    def reconnect(self) -> None:
        """Connect with those that link if they are not connected."""
        ...

    def partners(self, links: Mapping[str, Links]) -> list[PartnerFeatures]:
        """Return the partners in every list for training; rows to be stored are fetched now."""
        ...

    def new_partners(self, name: str, wait: Wait, config: SecondaryConfig, trees: StackedTrees | None) -> NewPartners:
        """Return the partners of new records in one list; trees beside the network may see them."""
        ...

    def end(self, *, trained: bool) -> None:
        """Report that training is complete; ``trained`` says whether by this process."""
        ...


class JobLinker(Linker[PartyData, Any], Protocol):
    """A linker that also judges what it found."""

    def quality(self, records: PartyData, links: Links) -> ReceivedQuality:
        """Return what the primary can know about its links."""
        ...


def open_linking(
    context: PartyContext,
    peers: Mapping[str, ReconnectingPeer],
    dial: Callable[[], Session] | None = None,
) -> JobLinking:
    """Return how a job links; ``peers`` are its secondaries, and ``dial`` connects with its coordinator."""
    if context.job.direct:
        return DirectLinking(context, peers)
    return CoordinatorLinking(context, peers, ReconnectingPeer(dial or (lambda: context.dial(Role.COORDINATOR))))


class CoordinatorLinking:
    """Records are linked by the coordinator."""

    def __init__(
        self, context: PartyContext, peers: Mapping[str, ReconnectingPeer], coordinator: ReconnectingPeer
    ) -> None:
        self.context, self.peers, self.coordinator = context, peers, coordinator
        store = RunStore.of(context)
        self.linkers = {name: CoordinatorLinker(store, name, coordinator) for name in context.job.secondaries}

    @property
    def online(self) -> bool:
        return self.coordinator.connected

    def needing_partner(self, encoded: Mapping[str, Any]) -> Mapping[str, int]:
        return {}

    def join(self) -> None:
        self.coordinator.session()

    reconnect = join

    def partners(self, links: Mapping[str, Links]) -> list[PartnerFeatures]:
        if not self.context.job.protection.sealed:
            return [RemoteRows(self.context, self.peers[name], found) for name, found in links.items()]
        stored = [stored_partners(self.context, self.peers[name], name, found) for name, found in links.items()]
        self.context.dismiss_callers(Farewell())  # now, because the time that training takes depends on labels
        return list(stored)

    def new_partners(self, name: str, wait: Wait, config: SecondaryConfig, trees: StackedTrees | None) -> NewPartners:
        context, peer = self.context, self.peers[name]
        if not context.job.protection.sealed:
            return RemotePartners(context, name, peer, wait, embeds=trees is not None and bool(trees.pools))

        def more(missing: Integers32, links: Links) -> Floats32 | None:
            if wait([name]):
                return None
            remote = remote_secondary(context, peer.session(), predicting=True)
            remote.use_permit(links.permit)
            return fetch_rows(remote, missing)

        return StoredPartners(context, name, config, more)

    def end(self, *, trained: bool) -> None:
        """Notify the coordinator.

        If this process ``trained``, the coordinator waits for the notice, and is waited for while it restarts.
        Otherwise it may have received it from an earlier process and be gone for good.
        """
        state = self.context.connection
        seconds = min(state.wait_seconds, FINISH_SECONDS) if trained else FAILURE_NOTICE_SECONDS
        state.wait_seconds = seconds
        try:
            self.coordinator.ask(send_finish)
        except PeerError:
            if trained:
                hint = "the model is saved; if the coordinator still waits for this party, run this again"
                log.warning("the coordinator did not confirm the end within %.0f seconds; %s", seconds, hint)
            else:
                log.info("the coordinator has already exited")


class DirectLinking:
    """Records are linked here, by tokens and the encrypted tables of the secondaries."""

    def __init__(self, context: PartyContext, peers: Mapping[str, ReconnectingPeer]) -> None:
        self.context, self.peers = context, peers
        self.linkers = {name: TableLinker(context, name, peers[name]) for name in context.job.secondaries}

    @property
    def online(self) -> bool:
        return True

    def needing_partner(self, encoded: Mapping[str, Any]) -> Mapping[str, int]:
        return {name: self.linkers[name].needing_partner(queries) for name, queries in encoded.items()}

    def join(self) -> None:
        for name, peer in self.peers.items():
            if not released_path(rows_path(self.context.folder, name)).is_file():  # else it may have left
                peer.session()

    def reconnect(self) -> None:
        """Do nothing: secondaries call when they come back."""

    def partners(self, links: Mapping[str, Links]) -> list[PartnerFeatures]:
        stored = []
        for name, found in links.items():
            linker = self.linkers[name]
            vectors = partial(_opened_rows, linker)
            stored.append(stored_partners(self.context, self.peers[name], name, found, vectors))
        self.context.dismiss_callers(Farewell())  # now, because the time that training takes depends on labels
        return list(stored)

    def new_partners(self, name: str, wait: Wait, config: SecondaryConfig, trees: StackedTrees | None) -> NewPartners:
        linker = self.linkers[name]

        def away(queries: list[FieldTokens]) -> tuple[str, ...]:
            return wait([name]) if linker.needing_partner(queries) else ()

        return StoredPartners(self.context, name, config, lambda missing, _: linker.vectors_of(missing), away)

    def end(self, *, trained: bool) -> None:
        """Do nothing: the secondaries were dismissed before training."""


def _opened_rows(linker: TableLinker, _: RemoteSecondary, rows: Integers32) -> Floats32:
    return linker.vectors_of(rows)
