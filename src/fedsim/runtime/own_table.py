"""A secondary's encrypted table in a job without a coordinator: its key, its file, and what is served from both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fedsim.data.table_reader import frame_digest
from fedsim.linkage.direct.encrypted_table import build_table
from fedsim.linkage.direct.exchange import TokenEvaluator
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Role
from fedsim.protocol.roles.table_role import TableFile, TableResponder
from fedsim.protocol.session import Session, send_notices
from fedsim.runs.budget import key_store, tokens_spent
from fedsim.runs.run_folder import make_private_folder
from fedsim.runtime.party_context import PartyContext
from fedsim.storage.files import atomic_write
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import Floats32

TABLES_FOLDER = "tables"


class OwnTable:
    """The table of a running secondary, and what of it primaries asked for."""

    def __init__(self, context: PartyContext) -> None:
        own, self.context = context.party_file, context
        self.keys, self.terms = key_store(own), context.job.secondaries[own.name]

    def file(self, table: PartyData, vectors: Floats32, session: Session | None) -> TableFile:
        """Return the encrypted table, which is built once per content and key; ``session`` is told to wait."""
        name, schema = self.context.party_file.name, self.terms.token_schema
        if not self.keys.record(name).keys:
            self.keys.create(name, datetime.now(UTC))
            self.context.connection.record_event("key created", {"table": name})
        key = self.keys.key(name)
        path = self.context.party_file.folder / TABLES_FOLDER / f"{schema.fingerprint.hex()}.safetensors"
        note, identifiers = path.with_suffix(".json"), table.token_identifiers(name)
        content = [schema.fingerprint.hex(), key.public.hex(), frame_digest(identifiers), arrays_digest(vectors)]
        with suppress(OSError, ValueError, TypeError, KeyError):
            facts = json.loads(note.read_bytes())
            if facts["content"] == content and path.stat().st_size == facts["size"]:
                return _described(path, facts["digest"], vectors)
        make_private_folder(path.parent)
        with _while_waiting(session):
            build_table(schema, identifiers, vectors, key).save(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found = _described(path, digest, vectors)
        with atomic_write(note, mode=0o600) as part:
            part.write_text(json.dumps({"content": content, "digest": digest, "size": found.size}))
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

        return TableResponder(
            table=file,
            evaluator=TokenEvaluator(self.keys, own.name, limit),
            on_table=lambda: record("table sent", facts={"digest": file.digest, "rows": file.rows}),
            on_evaluation=on_evaluation,
            on_finish=on_finish,
        )


def _described(path: Path, digest: str, vectors: Floats32) -> TableFile:
    return TableFile(path, digest, path.stat().st_size, *vectors.shape)


def _while_waiting(session: Session | None) -> AbstractContextManager[None]:
    return nullcontext() if session is None else send_notices(session, "encrypting its table")
