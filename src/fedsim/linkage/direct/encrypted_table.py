"""The secondary's encrypted table: who has the value of a token opens the rows that are listed under it.

A token is listed once per row, in slots 0, 1, 2, ...: every slot is an entry of its own, found by a tag and encrypted
with a key, both derived from the token's value and the slot, so that the table shows no length of a list. An entry
holds the row's pseudonym, its hint and a share of the row's key (Shamir, two of n: points of a line). The rows' vectors
are encrypted with these keys. All random choices follow from the secondary's secret key and the content, so that
building the table of the same content again gives the same file, and no key serves two contents.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedsim.errors import FingerprintError, InputError, SettingError
from fedsim.linkage.direct import oprf
from fedsim.linkage.direct.token_kinds import ALONE, NO_SHARE, WHOLE_CAP, TokenKind, Tokens
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.privacy.keyed_prng import secret_permutation
from fedsim.storage.tensor_file import arrays_digest, damaged_file, load_tensors, save_tensors
from fedsim.types import AnyArray, Bits, Floats32, Integers, Words
from fedsim.validation import validate_integer

TABLE_FORMAT = "fedsim token table 1"
PRIME = 2**128 - 159  # the field of the shares
KEY_BYTES, TAG_BYTES, SEAL_BYTES, SALT_BYTES = 16, 8, 16, 16
NO_PLACE = (1 << 32) - 1  # of a share that is of no use
ENTRY = np.dtype([("row", "<u4"), ("x", "<u4"), ("y", "u1", KEY_BYTES), ("hint", "<i8")])
ENTRY_BYTES = ENTRY.itemsize + SEAL_BYTES
MAX_VALUE = 1e6  # of a vector
MAX_EQUAL_TAGS = 4  # among a billion entries, two have equal tags with probability 0.03, and five never
VALUE_BYTES = 32  # of the value of a token that derive keys
ENTRIES_AT_ONCE = 1 << 18
NO_NONCE = bytes(12)  # every key of an entry or a row encrypts once


def round_up(count: int) -> int:
    """Return a multiple of 16 that shows the size of ``count`` to four binary digits only.

    >>> [round_up(count) for count in (0, 3, 1000, 1025)]
    [0, 16, 1024, 1152]
    """
    step = 1 << max(4, count.bit_length() - 4)
    return -(-count // step) * step


@dataclass(frozen=True, eq=False)
class OpenedEntries:
    """The E entries that tokens opened: ``token`` (E,) numbers the tokens, whose lists have ``length`` rows.

    ``x`` (E,) and ``y`` (E, 16) are shares of the key of ``row`` (E,), a pseudonym; ``hint`` (E,) is its finest cell.
    """

    token: Integers
    length: Integers
    row: Integers
    x: Integers
    y: Bits
    hint: Integers


@dataclass(frozen=True, eq=False)
class EncryptedTable:
    """A table as the primary receives it, in memory or mapped from its file.

    ``tags`` are sorted, ``entries`` in the same order, by field; ``vectors`` has a row of encrypted bytes per
    pseudonym. ``public`` is the key with which evaluations are verified, ``n_values`` the length of a row's vector,
    ``owner`` the name of the party whose table it is.
    """

    schema: TokenSchema
    public: bytes
    salt: bytes
    tags: list[Words]
    entries: list[Bits]
    vectors: Bits
    n_values: int
    owner: str = ""

    def __repr__(self) -> str:
        size = sum(len(tags) for tags in self.tags)
        return f"EncryptedTable({len(self.vectors)} rows, {size} entries, key {self.public.hex()[:12]})"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.vectors)

    def open(self, field: int, values: Sequence[bytes]) -> OpenedEntries:
        """Open all entries of a field that are listed under tokens with these values."""
        found: list[tuple[int, bytes]] = []
        asked = np.arange(len(values))
        slot = 0
        # Longer lists are not honest: the time that they take could show whether a token is among the primary's.
        while len(asked) and slot < max(WHOLE_CAP, self.schema.fields[field].kind.cap):
            keys = [entry_keys(values[place], self.salt, slot) for place in asked.tolist()]
            tags = np.frombuffer(b"".join(tag for tag, _ in keys), "<u8")
            first, last = (np.searchsorted(self.tags[field], tags, side=side) for side in ("left", "right"))
            hit = np.flatnonzero(last > first)
            opened = []
            for place in hit.tolist():
                tagged = range(first[place], min(last[place], first[place] + MAX_EQUAL_TAGS))
                candidates = (self.entries[field][at] for at in tagged)
                entry = next(_opened(keys[place][1], candidates), None)
                if entry is not None:
                    found.append((int(asked[place]), entry))
                    opened.append(place)
            asked = asked[np.array(opened, np.int64)]
            slot += 1
        found.sort(key=lambda one: one[0])
        content = np.frombuffer(bytearray().join(entry for _, entry in found), ENTRY)
        token = np.array([place for place, _ in found], np.int64)
        known = content["row"] < self.rows
        content, token = content[known], token[known]
        length = np.bincount(token, minlength=len(values))
        row, x = content["row"].astype(np.int64), content["x"].astype(np.int64)
        return OpenedEntries(token, length, row, x, content["y"], content["hint"])

    def open_vectors(self, opened: Sequence[OpenedEntries]) -> tuple[Integers, Floats32]:
        """Return the rows whose key the shares of all opened entries determine, ascending, and their vectors.

        Rows whose vectors the key does not open, or that are not numbers, are left out without an error, by which the
        secondary could see which rows were reached.
        """
        rows, vectors = [], []
        for row, key in _row_keys(opened):
            for content in _opened(_vector_key(key, self.salt), [self.vectors[row]]):
                vector = np.frombuffer(content, "<f4")
                if (np.abs(vector) <= MAX_VALUE).all():
                    rows.append(row)
                    vectors.append(vector)
        values = np.array(vectors, np.float32).reshape(len(rows), self.n_values)
        return np.array(rows, np.int64), values

    def save(self, path: Path | str) -> None:
        """Write the table to one file, atomically."""
        tensors: dict[str, AnyArray] = {"vectors": self.vectors}
        for place, (tags, entries) in enumerate(zip(self.tags, self.entries, strict=True)):
            tensors |= {f"tags.{place}": tags, f"entries.{place}": entries}
        facts = {"owner": self.owner, "schema": self.schema.fingerprint.hex(), "payload": "rows"}
        facts |= {"public": self.public.hex(), "salt": self.salt.hex(), "n_values": str(self.n_values)}
        save_tensors(path, TABLE_FORMAT, tensors, facts)

    @classmethod
    def load(cls, path: Path | str, schema: TokenSchema) -> EncryptedTable:
        """Memory-map a table; raise ``FileError`` for any other file, ``FingerprintError`` for another schema's."""
        tensors, facts = load_tensors(path, TABLE_FORMAT, mapped=True)
        try:
            if facts["payload"] != "rows":
                raise damaged_file(path, TABLE_FORMAT)
            public, salt, n_values = (
                bytes.fromhex(facts["public"]),
                bytes.fromhex(facts["salt"]),
                int(facts["n_values"]),
            )
            theirs, ours = bytes.fromhex(facts["schema"]).hex(), schema.fingerprint.hex()
            if theirs != ours:  # of another job, or of a release whose tokens are others
                message = f"{path} has tokens of schema {theirs[:12]}, but the job's schema is {ours[:12]}"
                hint = "ask for the table of this job, written by the same release"
                raise FingerprintError(f"{message}; {hint}", code="schemas-differ")
            fields = range(len(schema.fields))
            tags, entries = ([tensors[f"{name}.{place}"] for place in fields] for name in ("tags", "entries"))
            table = cls(schema, public, salt, tags, entries, tensors["vectors"], n_values, str(facts["owner"]))
            valid = table._is_valid()
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise damaged_file(path, TABLE_FORMAT) from error
        if not valid:
            raise damaged_file(path, TABLE_FORMAT)
        return table

    def _is_valid(self) -> bool:
        """Return whether sizes and types are those of a table."""
        shapes = all(
            tags.dtype == np.uint64 and entries.dtype == np.uint8 and entries.shape == (*tags.shape, ENTRY_BYTES)
            for tags, entries in zip(self.tags, self.entries, strict=True)
        )
        vectors = self.vectors.dtype == np.uint8 and self.vectors.ndim == 2
        sizes = len(self.public) == oprf.ELEMENT_BYTES and len(self.salt) == SALT_BYTES and self.n_values >= 0
        width = 4 * self.n_values + SEAL_BYTES
        return (
            shapes
            and vectors
            and sizes
            and self.vectors.shape[1] == width
            and all(tags.ndim == 1 and bool((tags[1:] >= tags[:-1]).all()) for tags in self.tags)
        )


def read_owner(path: Path | str) -> str:
    """Return the name of the party whose table a file has; raise ``FileError`` for any other file."""
    _, facts = load_tensors(path, TABLE_FORMAT, mapped=True)
    return str(facts.get("owner"))


def build_table(
    schema: TokenSchema,
    records: Any,
    vectors: Floats32,
    key: oprf.SecretKey,
    *,
    min_rows: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> EncryptedTable:
    """Return the encrypted table of a secondary.

    Parameters
    ----------
    schema
        The public schema of the job.
    records
        The table with the columns that the schema names, or the tokens of what it lists, by field.
    vectors
        What the primary gets of each row, (rows, values).
    key
        The table's key; it never leaves the secondary.
    min_rows
        Tokens of fewer rows than this are left out; the owner decides.
    progress
        Called with the number of tokens evaluated and listed so far, and of all.

    Examples
    --------
    >>> from fedsim.linkage.direct import CodeTokens, TokenField
    >>> schema = TokenSchema((TokenField(("code",), CodeTokens()),))
    >>> build_table(schema, {"code": ["a", "b"]}, np.zeros((2, 3), np.float32), oprf.SecretKey.generate()).rows
    2
    """
    validate_integer(min_rows, "min_rows", least=1)
    fields: list[FieldTokens] = records if isinstance(records, list) else schema.row_tokens(records)
    n = fields[0].n
    if vectors.ndim != 2 or len(vectors) != n:
        raise InputError(f"{len(vectors)} vectors for {n} rows; give one per row", code="vector-count")
    if n >= 1 << 32:
        raise SettingError(f"{n} rows; a table has fewer than 2^32", code="too-many-rows")
    vectors = np.ascontiguousarray(vectors, "<f4")
    listed = [listed_tokens(field.kind, of.tokens, min_rows) for field, of in zip(schema.fields, fields, strict=True)]
    content = [of.rows for of in fields] + [array for of in listed for array in vars(of).values()]
    subject = schema.fingerprint.hex() + arrays_digest(vectors, *content)
    builder = _Builder(hmac.digest(key.scalar, b"fedsim token table" + subject.encode(), "sha256"), n)
    tags, entries = [], []
    numbered = [np.unique(of.token, return_inverse=True) for of in listed]  # distinct tokens, and which of them
    done, total = 0, sum(len(distinct) + len(which) for distinct, which in numbered)

    def move(count: int) -> None:
        if progress is not None:
            progress(done + count, total)

    move(0)
    for place, (tokens, of, (distinct, which)) in enumerate(zip(listed, fields, numbered, strict=True)):

        def evaluate(some: Sequence[int], place: int = place, distinct: Words = distinct) -> bytes:
            inputs = schema.inputs(place, distinct[some[0] : some[-1] + 1].tolist())
            return b"".join(value[:VALUE_BYTES] for value in key.evaluate(inputs))

        values = b"".join(oprf.map_batches(evaluate, range(len(distinct)), move))
        sealed_field = builder.entries(place, tokens, of.rows[tokens.record], which, values)
        tags.append(sealed_field[0])
        entries.append(sealed_field[1])
        done += len(distinct) + len(which)
        move(0)
    sealed = np.empty((n, vectors.shape[1] * 4 + SEAL_BYTES), np.uint8)
    for row in range(n):
        secret = _vector_key(builder.row_secret(row)[0], builder.salt)
        body = AESGCM(secret).encrypt(NO_NONCE, vectors[row].tobytes(), None)
        sealed[builder.pseudonym[row]] = np.frombuffer(body, np.uint8)
    return EncryptedTable(schema, key.public, builder.salt, tags, entries, sealed, vectors.shape[1])


class _Builder:
    """Secrets of one table, all derived from the key and the content."""

    def __init__(self, master: bytes, n: int) -> None:
        self.master = master
        self.salt = hmac.digest(master, b"salt", "sha256")[:SALT_BYTES]
        self.pseudonym = np.argsort(secret_permutation(master, "pseudonyms of rows", n))

    def row_secret(self, row: int) -> tuple[int, int, bytes]:
        """Return the key of a row, the slope of the line on which its shares lie, and a seed for their places."""
        secret = hmac.digest(self.master, b"row" + row.to_bytes(8, "big"), "sha512")
        return int.from_bytes(secret[:24]) % PRIME, int.from_bytes(secret[24:48]) % PRIME, secret[48:]

    def entries(self, place: int, tokens: Tokens, rows: Integers, which: Integers, values: bytes) -> tuple[Words, Bits]:
        """Return the tags, sorted, and the entries of a field, with random ones up to a round number.

        ``rows`` are those of the tokens in the table, and ``which`` numbers their values.
        """
        slot, size = _slots(which, self.pseudonym[rows]), round_up(len(which))
        tags, sealed = np.empty(size, np.uint64), np.empty((size, ENTRY_BYTES), np.uint8)
        for start in range(0, len(which), ENTRIES_AT_ONCE):
            some = slice(start, start + ENTRIES_AT_ONCE)
            plain = self._plain_entries(tokens.take(some), rows[some])
            places = zip(which[some].tolist(), slot[some].tolist(), plain, strict=True)
            for at, (number, token_slot, content) in enumerate(places, start):
                value = values[number * VALUE_BYTES : (number + 1) * VALUE_BYTES]
                tag, secret = entry_keys(value, self.salt, token_slot)
                tags[at] = int.from_bytes(tag, "little")
                sealed[at] = np.frombuffer(AESGCM(secret).encrypt(NO_NONCE, content.tobytes(), None), np.uint8)
        padding = hashlib.shake_256(self.master + b"padding" + place.to_bytes(2, "big"))
        rest = np.frombuffer(padding.digest((size - len(which)) * (TAG_BYTES + ENTRY_BYTES)), np.uint8)
        rest = rest.reshape(size - len(which), TAG_BYTES + ENTRY_BYTES)
        tags[len(which) :] = np.ascontiguousarray(rest[:, :TAG_BYTES]).view("<u8")[:, 0]
        sealed[len(which) :] = rest[:, TAG_BYTES:]
        order = np.argsort(tags, kind="stable")
        return tags[order], sealed[order]

    def _plain_entries(self, tokens: Tokens, rows: Integers) -> AnyArray:
        """Return what the entries say: pseudonym, share and hint."""
        plain = np.zeros(len(tokens.token), ENTRY)
        plain["row"], plain["hint"] = self.pseudonym[rows], tokens.hint
        places, values, row = [], bytearray(), -1
        for at, share in zip(rows.tolist(), tokens.share.tolist(), strict=True):
            if at != row:
                row, (secret, slope, seed) = at, self.row_secret(at)
            x = _share_place(seed, share)
            places.append(x)
            y = 0 if x == NO_PLACE else (secret + slope * x) % PRIME
            values += y.to_bytes(KEY_BYTES, "little")
        plain["x"], plain["y"] = places, np.frombuffer(bytes(values), np.uint8).reshape(-1, KEY_BYTES)
        return plain


def _share_place(seed: bytes, share: int) -> int:
    """Return where on the line a share lies: at 0, where the key is, or at a place that shows nothing about it."""
    if share in (ALONE, NO_SHARE):
        return 0 if share == ALONE else NO_PLACE
    digest = hashlib.blake2b(share.to_bytes(8, "big"), key=seed, digest_size=4).digest()
    return 1 + int.from_bytes(digest, "little") % (NO_PLACE - 1)


def listed_tokens(kind: TokenKind, tokens: Tokens, min_rows: int = 1) -> Tokens:
    """Return the tokens that a table lists, in order of their rows."""
    length = np.zeros(len(tokens.token), np.int64)
    # Tokens are hashes, so a sixteenth of them has equal first bits: one after the other they take less memory.
    part = (tokens.token >> np.uint64(60)).astype(np.uint8)
    for number in range(16):
        here = np.flatnonzero(part == number)
        _, which, counts = np.unique(tokens.token[here], return_inverse=True, return_counts=True)
        length[here] = counts[which]
    return tokens.take(kind.listed(tokens, length) & (length >= min_rows))


def _slots(which: Integers, pseudonym: Integers) -> Integers:
    """Return the place of every token in its list, in order of pseudonyms."""
    order = np.lexsort((pseudonym, which))
    slot = np.empty(len(order), np.int64)
    slot[order] = np.arange(len(order)) - np.searchsorted(which[order], which[order])
    return slot


def entry_keys(value: bytes, salt: bytes, slot: int) -> tuple[bytes, bytes]:
    """Return tag and key of an entry."""
    digest = hmac.digest(value[:VALUE_BYTES], salt + b"entry" + slot.to_bytes(4, "big"), "sha512")
    return digest[:TAG_BYTES], digest[TAG_BYTES : TAG_BYTES + 32]


def _vector_key(row_key: int, salt: bytes) -> bytes:
    return hmac.digest(row_key.to_bytes(KEY_BYTES, "little"), salt + b"vector", "sha256")


def _opened(key: bytes, candidates: Iterator[Bits] | Sequence[Bits]) -> Iterator[bytes]:
    """Yield what the key opens."""
    for sealed in candidates:
        try:
            yield AESGCM(key).decrypt(NO_NONCE, sealed.tobytes(), None)
        except InvalidTag:
            continue


def _row_keys(opened: Sequence[OpenedEntries]) -> Iterator[tuple[int, int]]:
    """Yield the rows whose key is known, ascending, and the key: from a share at 0, or from two different ones."""
    row, x = (np.concatenate([getattr(of, name) for of in opened]) for name in ("row", "x"))
    y = np.concatenate([of.y for of in opened])
    order = np.lexsort((x, row))
    order = order[x[order] != NO_PLACE]
    row, x, y = row[order], x[order], y[order]
    new = np.append(True, (row[1:] != row[:-1]) | (x[1:] != x[:-1]))[: len(row)]
    row, x, y = row[new], x[new].tolist(), y[new]
    first = np.flatnonzero(np.append(True, row[1:] != row[:-1]))[: len(row)]
    for at, count in zip(first.tolist(), np.diff(np.append(first, len(row))).tolist(), strict=True):
        left = int.from_bytes(y[at].tobytes(), "little")
        if x[at] == 0:
            yield int(row[at]), left
        elif count > 1:
            right = int.from_bytes(y[at + 1].tobytes(), "little")
            inverse = pow(x[at + 1] - x[at], -1, PRIME)
            yield int(row[at]), (left * x[at + 1] - right * x[at]) * inverse % PRIME
