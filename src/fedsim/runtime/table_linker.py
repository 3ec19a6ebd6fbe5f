"""The linker of a job without a coordinator: the secondary's encrypted table and token values, kept by the primary."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsim.config.job import Job
from fedsim.errors import FingerprintError
from fedsim.linkage.direct.encrypted_table import EncryptedTable, read_owner
from fedsim.linkage.direct.oprf import EvaluatedBatch
from fedsim.linkage.direct.token_schema import FieldTokens
from fedsim.linkage.direct.token_values import TokenValues
from fedsim.linkage.encoding.quality import ReceivedQuality
from fedsim.linkage.private_linkage import save_private_links
from fedsim.pipeline.direct_linker import DirectLinker, FittedDirect
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.roles.primary_role import evaluate_remotely, fetch_table, file_digest
from fedsim.runs.deletion import handed_over_path, released_path, rows_path, table_path
from fedsim.runs.run_folder import links_path, make_private_folder
from fedsim.runtime.partner_rows import StoredRows
from fedsim.runtime.party_context import LinkageProgress, PartyContext, ReconnectingPeer
from fedsim.storage.files import atomic_write, remove_paths
from fedsim.types import AnyArray, Floats32, Integers, Links

log = logging.getLogger("fedsim.parties")

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
