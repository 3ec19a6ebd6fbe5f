"""The exchange of direct linking: a primary has its tokens evaluated blindly and keeps their values for later jobs.

The primary's values lie in a private journal: what was evaluated before costs nothing and asks nobody. Values are only
ever appended, in blocks with a digest, by jobs that may run at the same time. An index of the tokens is in memory, 12
bytes each; the values stay in the file, which is memory-mapped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from fedsim.errors import FileError, PeerError
from fedsim.linkage.direct import oprf
from fedsim.linkage.direct.encrypted_table import VALUE_BYTES, EncryptedTable, round_up
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.token_kinds import distinct
from fedsim.linkage.direct.token_links import TokenPairs
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.storage.files import append_durably
from fedsim.storage.tensor_file import damaged_file
from fedsim.types import AnyArray, Flags, Floats32, Integers, Words

VALUES_FORMAT = "fedsim token values 1"
# Two records have the format, the digests of schema and key, and their digest; a block begins with one that counts it.
RECORD = np.dtype([("field", "<u4"), ("unused", "<u4"), ("token", "<u8"), ("value", "u1", VALUE_BYTES)])
SIZE = RECORD.itemsize
COUNT_BYTES, DIGEST_BYTES, CHECK_BYTES = 4, 32, 12  # of the head of a block, SIZE in all


class TokenValues:
    """Values of tokens by field.

    Parameters
    ----------
    schema, public
        Values belong to a schema and to a key of the secondary.
    path
        Where they are kept; without it, only in memory.
    """

    def __init__(self, schema: TokenSchema, public: bytes, path: Path | None = None) -> None:
        head = VALUES_FORMAT.encode().ljust(32) + hashlib.sha256(schema.fingerprint + public).digest()
        self._head, self._path = head + hashlib.sha256(head).digest(), path
        self._tokens = [np.zeros(0, np.uint64)] * len(schema.fields)  # ascending, with their places among the records
        self._places = [np.zeros(0, np.uint32)] * len(schema.fields)
        self._records: AnyArray = np.zeros(0, RECORD)
        self._end = 0  # of what was read, in bytes
        self._read_new()

    def __repr__(self) -> str:
        return f"TokenValues({sum(map(len, self._tokens))} tokens)"

    def missing(self, field: int, tokens: Words) -> Words:
        """Return the distinct tokens of a field whose values are not known, to no other job either."""
        self._read_new()
        return self._unknown(field, distinct(tokens))

    def take(self, field: int, tokens: Words) -> list[bytes]:
        """Return the values of known tokens."""
        place = self._places[field][np.searchsorted(self._tokens[field], tokens)]
        return [row.tobytes() for row in self._records["value"][place]]

    def add(self, field: Integers, tokens: Words, values: Sequence[bytes]) -> None:
        """Keep the values of tokens of several fields, durably."""
        block = np.zeros(len(tokens), RECORD)
        block["field"], block["token"] = field, tokens
        content = b"".join(value[:VALUE_BYTES] for value in values)
        block["value"] = np.frombuffer(content, np.uint8).reshape(-1, VALUE_BYTES)
        if self._path is None:
            self._index([(len(self._records), block)])
            self._records = np.concatenate([self._records, block])
            return
        with self._locked(self._path) as file:
            self._read(file, self._path)  # another job may have had some of them evaluated meanwhile
            block = block[self._new_ones(block)]
            if len(block):
                written = (b"" if self._end else self._head) + _block_head(block.tobytes()) + block.tobytes()
                append_durably(self._path, written, after=self._end)
                self._read(file, self._path)

    def _unknown(self, field: int, tokens: Words) -> Words:
        known = self._tokens[field]
        place = np.searchsorted(known, tokens)
        found = place < len(known)
        found[found] = known[place[found]] == tokens[found]
        return tokens[~found]

    def _new_ones(self, block: AnyArray) -> Integers:
        """Return the places of a block's tokens that are not known, each once."""
        new = []
        for field in np.unique(block["field"]).tolist():
            here = np.flatnonzero(block["field"] == field)
            distinct, first = np.unique(block["token"][here], return_index=True)
            new.append(here[first[np.isin(distinct, self._unknown(field, distinct))]])
        return np.concatenate([np.zeros(0, np.int64), *new])

    def _index(self, blocks: Sequence[tuple[int, AnyArray]]) -> None:
        """Add blocks to the index, each with the place of its first record."""
        for field, known in enumerate(self._tokens):
            here = [np.flatnonzero(block["field"] == field) for _, block in blocks]
            tokens = np.concatenate([block["token"][at] for (_, block), at in zip(blocks, here, strict=True)])
            places = np.concatenate([first + at for (first, _), at in zip(blocks, here, strict=True)])
            order = np.argsort(tokens)
            at = np.searchsorted(known, tokens[order])
            self._tokens[field] = np.insert(known, at, tokens[order])
            self._places[field] = np.insert(self._places[field], at, places[order].astype(np.uint32))

    # The file

    def _read_new(self) -> None:
        """Read what other jobs appended."""
        if self._path is not None and (self._path.stat().st_size if self._path.exists() else 0) != self._end:
            with self._locked(self._path) as file:
                self._read(file, self._path)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[int]:
        """Open the file; no other job writes it until the block ends or this process dies."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            message = f"cannot write {path}: {error.strerror}; check name, folder and free space"
            raise FileError(message, code="not-writable", path=path) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _read(self, file: int, path: Path) -> None:
        """Read from the end of what is known; cut off what a killed process did not write to its end."""
        size, blocks = os.fstat(file).st_size, []
        if size < self._end:
            raise damaged_file(path, VALUES_FORMAT)
        if not self._end and size >= len(self._head):
            self._check_head(os.pread(file, len(self._head), 0), path)
            self._end = len(self._head)
        while self._end and self._end < size:
            content = _read_block(file, self._end, size, path)
            if content is None:
                break
            self._end += SIZE
            blocks.append((self._end // SIZE, np.frombuffer(content, RECORD)))
            self._end += len(content)
        if size > self._end:
            os.ftruncate(file, self._end)
        if any((block["field"] >= len(self._tokens)).any() for _, block in blocks):
            raise damaged_file(path, VALUES_FORMAT)
        if blocks:
            self._index(blocks)
            self._records = np.memmap(path, RECORD, "r", shape=(self._end // SIZE,))

    def _check_head(self, head: bytes, path: Path) -> None:
        if head == self._head:
            return
        if hashlib.sha256(head[:-DIGEST_BYTES]).digest() != head[-DIGEST_BYTES:] or head[:32] != self._head[:32]:
            raise damaged_file(path, VALUES_FORMAT)
        message = f"{path} has values of another key or schema; name another file, or remove it"
        raise FileError(message, code="other-key", path=path)


def _block_head(content: bytes) -> bytes:
    head = (len(content) // SIZE).to_bytes(COUNT_BYTES, "little") + hashlib.sha256(content).digest()
    return head + hashlib.sha256(head).digest()[:CHECK_BYTES]


def _read_block(file: int, start: int, size: int, path: Path) -> bytes | None:
    """Return the records of a block, or None if it is the last one and incomplete."""
    head = os.pread(file, SIZE, start)
    if len(head) < SIZE:
        return None
    if hashlib.sha256(head[:-CHECK_BYTES]).digest()[:CHECK_BYTES] != head[-CHECK_BYTES:]:
        if any(os.pread(file, size - start, start)):
            raise damaged_file(path, VALUES_FORMAT)
        return None  # the disk noted the new size only, before the power failed
    length = SIZE * int.from_bytes(head[:COUNT_BYTES], "little")
    content = os.pread(file, length, start + SIZE)
    if len(content) == length and hashlib.sha256(content).digest() == head[COUNT_BYTES:-CHECK_BYTES]:
        return content
    if start + SIZE + length < size:
        raise damaged_file(path, VALUES_FORMAT)
    return None


# Sends blinded elements, returns a batch of evaluated ones and its proof for every oprf.MAX_BATCH of them.
Ask = Callable[[list[bytes]], Sequence[oprf.EvaluatedBatch]]


@dataclass(frozen=True)
class TokenEvaluator:
    """The secondary's side: counts what a primary asks for, durably, and only then evaluates it."""

    keys: KeyStore
    table: str
    max_tokens: int

    def evaluate(
        self, primary: str, blinded: Sequence[bytes], progress: oprf.Progress | None = None
    ) -> list[oprf.EvaluatedBatch]:
        """Return a batch of evaluated elements and its proof for every ``oprf.MAX_BATCH`` blinded ones."""
        request = hashlib.sha256(b"".join(blinded)).hexdigest()
        self.keys.charge(self.table, primary, len(blinded), self.max_tokens, request)
        key = self.keys.key(self.table)  # now, because it may have been rotated or destroyed meanwhile
        return oprf.map_batches(key.evaluate_blinded, blinded, progress)


def evaluate_tokens(
    schema: TokenSchema,
    queries: Sequence[FieldTokens],
    public: bytes,
    values: TokenValues,
    ask: Ask,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Have all tokens evaluated whose values are not known; return how many were sent.

    The secondary receives uniformly random points, in the order of their bytes, as many as a round number.

    Parameters
    ----------
    schema, queries
        The job's schema and the records' tokens by field.
    public
        The public key that the table names; an evaluation with any other is refused.
    values
        The values known so far; new ones are added after every round.
    ask
        Sends elements to the secondary.
    progress
        Called with the number of tokens done and in total, if there are any.
    """
    new = [values.missing(place, query.tokens.token) for place, query in enumerate(queries)]
    field = np.repeat(np.arange(len(new)), [len(of) for of in new])
    tokens = np.concatenate(new)
    shuffled = np.random.default_rng().permutation(len(tokens))  # rounds show nothing: their points are random
    field, tokens = field[shuffled], tokens[shuffled]
    sent = 0
    if progress is not None and len(tokens):
        progress(0, len(tokens))
    for start in range(0, len(tokens), oprf.ROUND_TOKENS):
        these, those = field[start : start + oprf.ROUND_TOKENS], tokens[start : start + oprf.ROUND_TOKENS]
        inputs = [schema.inputs(int(of), [int(token)])[0] for of, token in zip(these, those, strict=True)]
        outputs, size = _evaluate_round(inputs, public, ask)
        values.add(these, those, outputs)
        sent += size
        if progress is not None:
            progress(start + len(these), len(tokens))
    return sent


def _evaluate_round(inputs: list[bytes], public: bytes, ask: Ask) -> tuple[list[bytes], int]:
    """Return the values of inputs and the number of elements sent."""
    own = list(zip(inputs, oprf.random_blinds(len(inputs)), strict=True))
    blinded = list(chain.from_iterable(oprf.map_batches(oprf.blind, own)))
    sent = sorted([*blinded, *oprf.random_elements(round_up(len(inputs)) - len(inputs))])
    batches = [sent[start : start + oprf.MAX_BATCH] for start in range(0, len(sent), oprf.MAX_BATCH)]
    answers = ask(sent)
    if len(answers) != len(batches):
        message = (
            f"{len(answers)} batches of evaluated tokens for {len(batches)} sent; the partner's release may differ"
        )
        raise PeerError(message, code="bad-evaluation")
    oprf.map_batches(lambda one: oprf.verify(public, *one[0]), list(zip(batches, answers, strict=True)), size=1)
    evaluated = dict(zip(sent, chain.from_iterable(answer.elements for answer in answers), strict=True))
    whole = [(*pair, evaluated[element]) for pair, element in zip(own, blinded, strict=True)]
    return list(chain.from_iterable(oprf.map_batches(oprf.finalise, whole))), len(sent)


@dataclass(frozen=True, eq=False)
class OpenedRows:
    """What the primary opened: pairs that share a token, and the vectors (V, values) of the rows (V,), ascending."""

    pairs: TokenPairs
    rows: Integers
    vectors: Floats32

    @property
    def among(self) -> Flags:
        """Which rows of the table were opened, (rows,)."""
        return np.isin(np.arange(self.pairs.rows), self.rows)


def open_rows(
    table: EncryptedTable,
    queries: Sequence[FieldTokens],
    values: TokenValues,
    ask: Ask,
    progress: Callable[[int, int], object] | None = None,
    k: int | None = None,
) -> OpenedRows:
    """Compare the primary's records with the rows of a table, and open those that they reach.

    Parameters
    ----------
    table
        The secondary's table.
    queries
        The records' tokens by field.
    values
        The values known so far.
    ask
        Has the secondary evaluate blinded elements; it is called only for tokens whose values are not known.
    progress
        Called with the number of tokens done and in total, if there are any.
    k
        Partners per record, if more of what has no rivals is not needed.
    """
    evaluate_tokens(table.schema, queries, table.public, values, ask, progress)
    entries = [
        table.open(place, values.take(place, distinct(query.tokens.token))) for place, query in enumerate(queries)
    ]
    return OpenedRows(TokenPairs.of(table.schema, queries, entries, table.rows, k), *table.open_vectors(entries))
