"""A secondary's encrypted table in a job without a coordinator: its key, its file, and what is served from both."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fedsim.data.features import FeaturePreprocessor
from fedsim.data.table_reader import frame_digest
from fedsim.errors import FileError
from fedsim.linkage.direct.encrypted_table import EncryptedTable, build_table
from fedsim.linkage.direct.exchange import TokenEvaluator
from fedsim.linkage.direct.key_store import Shown
from fedsim.pipeline.party_table import PartyData
from fedsim.pipeline.release import Release, release_table
from fedsim.protocol.messages import Role
from fedsim.protocol.roles.table_role import TableFile, TableResponder
from fedsim.protocol.session import Session, send_notices
from fedsim.runs.budget import key_store, tokens_spent
from fedsim.runs.run_folder import make_private_folder
from fedsim.runtime.party_context import LinkageProgress, PartyContext
from fedsim.storage.files import remove_paths
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import Floats32

log = logging.getLogger("fedsim.parties")

TABLES_FOLDER = "tables"


class OwnTable:
    """The table of a running secondary, and what of it primaries asked for."""

    def __init__(self, context: PartyContext) -> None:
        own, self.context = context.party_file, context
        self.keys, self.terms = key_store(own), context.job.secondaries[own.name]

    def release(self, table: PartyData, preparation: FeaturePreprocessor) -> Release:
        """Return what the table shows, in groups that are the same in all jobs."""
        released = release_table(table, self.context.party_file.name, preparation, self.keys)
        facts = {"share": self.terms.share, "m": self.terms.m, "vectors": released.vectors}
        left_out = int((released.place < 0).sum())
        self.context.connection.record_event("groups formed", {**facts, "rows": len(released.place), "out": left_out})
        if left_out:
            log.info("%s of %s rows are in no group of %s and are not shown", left_out, len(table), self.terms.m)
        return released

    def file(self, table: PartyData, released: Release, vectors: Floats32, session: Session | None) -> TableFile:
        """Return the encrypted table, which is built once per content and key; ``session`` is told to wait.

        Its file is named by both: a job that runs at the same time with the same schema and other features, or for
        another primary, never sends this one's.
        """
        name, schema = self.context.party_file.name, self.terms.token_schema
        if not self.keys.record(name).keys:
            self.keys.create(name, datetime.now(UTC))
            self.context.connection.record_event("key created", {"table": name})
        job, now = self.context.job, datetime.now(UTC).isoformat(timespec="seconds")
        terms = self.terms.share or "", self.terms.m or 1, released.vectors
        self.keys.add_shown(name, Shown(job.primary.name, job.hash, now, *terms))
        key = self.keys.key(name)
        folder, identifiers = self.context.party_file.folder / TABLES_FOLDER, table.token_identifiers(name)
        least, of_rows = self.context.party_file.policy.least_list_rows, arrays_digest(vectors, released.place)
        content = [schema.fingerprint.hex(), key.public.hex(), frame_digest(identifiers), of_rows, least]
        of_key = key.public.hex()[:16]
        path = folder / f"{of_key}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()}.safetensors"
        with suppress(FileError):  # none yet, or damaged
            EncryptedTable.load(path, schema)
            return _described(path, vectors)
        make_private_folder(folder)
        stale = (one for one in folder.glob("*.safetensors") if not one.name.startswith(of_key))
        remove_paths(stale)  # their keys were destroyed
        with _while_waiting(session):
            progress = LinkageProgress(self.context, name, len(vectors), "the encrypted table")
            least = released.min_rows(least)
            built = build_table(schema, released.tokens, vectors, key, min_rows=least, progress=progress)
            replace(built, owner=name).save(path)
        found = _described(path, vectors)
        self.context.connection.record_event("table built", {"rows": len(vectors), "bytes": found.size})
        return found

    def responder(self, file: TableFile, on_finish: Callable[[], None]) -> TableResponder:
        """Return what answers the primary."""
        own = self.context.party_file
        limit = self.terms.max_tokens if own.policy.max_tokens is None else own.policy.max_tokens
        record = partial(self.context.connection.record_peer_event, peer=self.context.peer(Role.PRIMARY))

        def on_evaluation(tokens: int) -> None:
            primary = self.context.job.primary.name
            facts = {"primary": primary, "tokens": tokens, "total": tokens_spent(own, primary), "limit": limit}
            record("tokens evaluated", facts=facts)
            if not self.context.connection.serves_predictions:
                log.info("evaluated %s tokens for %s", f"{tokens:,}", primary)

        return TableResponder(
            table=file,
            evaluator=TokenEvaluator(self.keys, own.name, limit),
            on_table=lambda: record("table sent", facts={"digest": file.digest, "rows": file.rows}),
            on_evaluation=on_evaluation,
            on_finish=on_finish,
        )


def _described(path: Path, vectors: Floats32) -> TableFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return TableFile(path, digest, path.stat().st_size, *vectors.shape)


def _while_waiting(session: Session | None) -> AbstractContextManager[None]:
    return nullcontext() if session is None else send_notices(session, "encrypting its table")
