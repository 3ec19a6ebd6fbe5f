"""How the primary of a job finds partners and gets their rows: the one place that knows whether there is a coordinator.

With a coordinator, rows stay with their secondary or are fetched once; without one, records open them in the encrypted
table of the secondary.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedsim.config.job import Job
from fedsim.errors import FileError, FingerprintError, PeerError
from fedsim.linkage.direct.encrypted_table import EncryptedTable, read_owner
from fedsim.linkage.direct.exchange import TokenValues
from fedsim.linkage.direct.oprf import EvaluatedBatch
from fedsim.linkage.direct.token_schema import FieldTokens
from fedsim.linkage.encoding.quality import ReceivedQuality, judge_received_links
from fedsim.linkage.private_linkage import load_private_links, save_private_links
from fedsim.pipeline.direct_linker import DirectLinker, FittedDirect
from fedsim.pipeline.fitted_model import NewPartners, PartnerFeatures
from fedsim.pipeline.linker import Linker
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Farewell, Role
from fedsim.protocol.roles.primary_role import (
    EncodedQueries,
    RemoteSecondary,
    evaluate_remotely,
    fetch_new_partners,
    fetch_partners,
    fetch_table,
    file_digest,
    send_finish,
)
from fedsim.protocol.session import Session
from fedsim.protocol.transport import offer_digest
from fedsim.runs.run_folder import (
    handed_over_path,
    links_path,
    make_private_folder,
    released_path,
    rows_path,
    table_path,
)
from fedsim.runtime.partner_rows import (
    RemotePartners,
    RemoteRows,
    StoredPartners,
    StoredRows,
    Wait,
    fetch_rows,
    remote_secondary,
    stored_partners,
)
from fedsim.runtime.party_context import FAILURE_NOTICE_SECONDS, LinkageProgress, PartyContext, ReconnectingPeer
from fedsim.runtime.run_store import RunStore
from fedsim.splitnn.secondary_model import SecondaryConfig
from fedsim.storage.files import atomic_write, remove_paths
from fedsim.storage.tensor_file import arrays_digest
from fedsim.training.boosted_trees import StackedTrees
from fedsim.types import AnyArray, EncodedTable, Floats32, Integers, Integers32, Links


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


TOKENS_FOLDER = "tokens"  # of all jobs of a party: what was evaluated once is never asked for again


def load_handed_over(job: Job, file: Path) -> EncryptedTable:
    """Return the table in a file from one of the job's secondaries; refuse any other."""
    name = read_owner(file)
    if name not in job.secondaries:
        message = f"{file} is the table of none of the job's secondaries, {', '.join(job.secondaries)}"
        raise FingerprintError(f"{message}; ask one of them for the table of this job", code="other-table")
    return EncryptedTable.load(file, job.secondaries[name].token_schema)


def take_table(context: PartyContext, file: Path) -> str:
    """Take a table that a secondary handed over as a file, so that it is not fetched; return whose it is.

    Parameters
    ----------
    context
        The primary, from :func:`open_offline_context`.
    file
        The file, from :func:`fedsim.runtime.secondary.write_table`.
    """
    table = load_handed_over(context.job, file)
    name = table.owner
    path = table_path(context.folder, name)
    if fitted_path(path).is_file() and FittedDirect.load(fitted_path(path), name).salt != table.salt:
        message = f"{file} is another table of secondary '{name}' than the one that the model was trained with"
        raise FingerprintError(f"{message}; ask for that one, or train a new job", code="table-changed")
    make_private_folder(path.parent)
    with atomic_write(path, mode=0o600) as part:
        shutil.copyfile(file, part)
    digest = file_digest(path)
    handed_over_path(path).write_text(digest)
    facts = {"peer": f"secondary '{name}'", "digest": digest, "from": "a file"}
    context.connection.record_event("table received", facts)
    return name


def fitted_path(table: Path) -> Path:
    """Return where the primary stores what its training records fitted, beside the table."""
    return table.with_name(f"{table.stem}-fitted.safetensors")


@dataclass(eq=False)
class TableLinker:
    """Links the primary's records to the rows of one secondary's encrypted table.

    The table is in the run folder, token values are in the folder of the party, so that another job on the same tables
    has nothing evaluated. Once both are here, the secondary may be away.
    """

    context: PartyContext
    secondary: str
    peer: ReconnectingPeer
    evaluated: int = 0  # tokens sent by this process, padding included
    _linker: DirectLinker | None = field(default=None, init=False)

    def link(self, records: PartyData, training: Integers) -> Links:
        rows = rows_path(self.context.folder, self.secondary)
        if not released_path(rows).is_file():
            remove_paths([rows])  # an interrupted run's, perhaps of another table
        linker = self._open()
        linker.progress = LinkageProgress(self.context, self.secondary, len(records.frame), "new tokens")
        links = linker.link(records.token_identifiers(self.secondary), training)
        if linker.fitted is not None:
            linker.fitted.save(self._fitted_path)
        path = links_path(self.context.folder, self.secondary)  # for the report
        make_private_folder(path.parent)
        save_private_links(links, path)
        return links

    def encode_new(self, records: PartyData) -> list[FieldTokens]:
        terms = self.context.job.secondaries[self.secondary]
        return terms.token_schema.query_tokens(records.token_identifiers(self.secondary), records.source)

    def link_new(self, queries: list[FieldTokens]) -> Links:
        return self._trained().link_new(queries)

    def needing_partner(self, queries: list[FieldTokens]) -> int:
        """Return how many of these records are linked only while the secondary is online."""
        return self._trained().needing_partner(queries) if self._table_path.is_file() else queries[0].n

    def vectors_of(self, rows: AnyArray) -> Floats32:
        """Return the vectors of partners."""
        return self._trained().vectors_of(rows)

    def quality(self, records: PartyData, links: Links) -> ReceivedQuality:
        """Return what the primary can know about its links."""
        rows = self._trained().table.rows
        unlinked = float((links.partner == rows).all(axis=1).mean())
        opened = len(np.unique(links.partner[links.partner < rows]))
        return ReceivedQuality(unlinked=unlinked, opened=opened, evaluated=self.evaluated)

    def _trained(self) -> DirectLinker:
        """Return the linker with what the training records fitted."""
        if self._linker is not None and self._table_path.is_file():
            return self._linker
        fitted = FittedDirect.load(self._fitted_path, self.secondary)
        linker = self._open()
        linker.fitted = fitted
        rows = StoredRows.load(rows_path(self.context.folder, self.secondary))
        linker.vectors |= dict(zip(rows.pseudonym.tolist(), rows.values, strict=True))
        linker.vectors.pop(linker.table.rows, None)  # of no one
        return linker

    def _open(self) -> DirectLinker:
        """Return a linker over the secondary's table; it is fetched unless it is here and the secondary released."""
        terms, folder = self.context.job.secondaries[self.secondary], self.context.folder
        if not (released_path(rows_path(folder, self.secondary)).is_file() and self._table_path.is_file()):
            marker = handed_over_path(self._table_path)
            handed = marker.read_text() if marker.is_file() else ""
            digest = self.peer.ask(lambda session: fetch_table(session, self._table_path, handed))
            facts = {"peer": f"secondary '{self.secondary}'", "digest": digest}
            self.context.connection.record_event("table received", facts)
        schema = terms.token_schema
        table = EncryptedTable.load(self._table_path, schema)
        name = f"{self.secondary}-{schema.fingerprint.hex()[:12]}-{table.public.hex()[:12]}.values"
        tokens = self.context.party_file.folder / TOKENS_FOLDER
        make_private_folder(tokens)
        values = TokenValues(schema, table.public, tokens / name)
        self._linker = DirectLinker(self.secondary, table, terms.k, values, self._ask)
        return self._linker

    def _ask(self, blinded: list[bytes]) -> list[EvaluatedBatch]:
        facts = {"peer": f"secondary '{self.secondary}'", "tokens": len(blinded)}
        self.context.connection.record_event("tokens sent", facts)
        found = self.peer.ask(lambda session: evaluate_remotely(session, blinded))
        self.evaluated += len(blinded)
        return found

    @property
    def _table_path(self) -> Path:
        return table_path(self.context.folder, self.secondary)

    @property
    def _fitted_path(self) -> Path:
        return fitted_path(self._table_path)


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
