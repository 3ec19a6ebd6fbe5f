"""The exchange of direct linking: a primary has its tokens evaluated blindly and keeps their values for later jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from fedsim.errors import FileError, PeerError
from fedsim.linkage.direct import oprf
from fedsim.linkage.direct.encrypted_table import VALUE_BYTES, EncryptedTable, round_up
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.token_links import TokenPairs
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.storage.tensor_file import damaged_file, load_tensors, save_tensors
from fedsim.types import Flags, Floats32, Integers, Words

VALUES_FORMAT = "fedsim token values 1"

# Sends blinded elements, returns a batch of evaluated ones and its proof for every oprf.MAX_BATCH of them.
Ask = Callable[[list[bytes]], Sequence[oprf.Evaluation]]


class TokenValues:
    """The primary's values of tokens, in a private file: what was evaluated before costs nothing and asks nobody.

    Parameters
    ----------
    schema, public
        Values belong to a schema and to a key of the secondary.
    path
        Where they are kept; without it, only in memory.
    """

    def __init__(self, schema: TokenSchema, public: bytes, path: Path | None = None) -> None:
        self._facts = {"schema": schema.fingerprint.hex(), "public": public.hex()}
        self._path, n_fields = path, len(schema.fields)
        self._tokens = [np.zeros(0, np.uint64)] * n_fields
        self._values = [np.zeros((0, VALUE_BYTES), np.uint8)] * n_fields
        if path is not None and path.exists():
            tensors, facts = load_tensors(path, VALUES_FORMAT)
            if facts != self._facts:
                message = f"{path} has values of another key or schema; name another file, or remove it"
                raise FileError(message, code="other-key", path=path)
            self._tokens, self._values = (
                [tensors[f"{of}.{at}"] for at in range(n_fields)] for of in ("tokens", "values")
            )
            if not all(self._fits(place) for place in range(n_fields)):
                raise damaged_file(path, VALUES_FORMAT)

    def _fits(self, place: int) -> bool:
        tokens, values = self._tokens[place], self._values[place]
        return tokens.dtype == np.uint64 and values.dtype == np.uint8 and values.shape == (*tokens.shape, VALUE_BYTES)

    def __repr__(self) -> str:
        return f"TokenValues({sum(map(len, self._tokens))} tokens)"

    def missing(self, field: int, tokens: Words) -> Words:
        """Return the distinct tokens of a field whose values are not known."""
        distinct, known = np.unique(tokens), self._tokens[field]
        place = np.searchsorted(known, distinct)
        found = place < len(known)
        found[found] = known[place[found]] == distinct[found]
        return distinct[~found]

    def take(self, field: int, tokens: Words) -> list[bytes]:
        """Return the values of known tokens."""
        place = np.searchsorted(self._tokens[field], tokens)
        return [row.tobytes() for row in self._values[field][place]]

    def add(self, field: Integers, tokens: Words, values: Sequence[bytes]) -> None:
        """Keep the values of tokens of several fields, durably."""
        content = np.frombuffer(b"".join(value[:VALUE_BYTES] for value in values), np.uint8).reshape(-1, VALUE_BYTES)
        for place in np.unique(field).tolist():
            known = np.concatenate([self._tokens[place], tokens[field == place]])
            every = np.concatenate([self._values[place], content[field == place]])
            self._tokens[place], first = np.unique(known, return_index=True)
            self._values[place] = every[first]
        if self._path is not None:
            fields = range(len(self._tokens))
            tensors = {f"tokens.{at}": self._tokens[at] for at in fields} | {
                f"values.{at}": self._values[at] for at in fields
            }
            save_tensors(self._path, VALUES_FORMAT, tensors, self._facts)


@dataclass(frozen=True)
class TokenEvaluator:
    """The secondary's side: counts what a primary asks for, durably, and only then evaluates it."""

    keys: KeyStore
    table: str
    max_tokens: int

    def evaluate(
        self, primary: str, blinded: Sequence[bytes], progress: oprf.Progress | None = None
    ) -> list[oprf.Evaluation]:
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
    progress: oprf.Progress | None = None,
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
        Called with the number of elements done.
    """
    new = [values.missing(place, query.tokens.token) for place, query in enumerate(queries)]
    field = np.repeat(np.arange(len(new)), [len(of) for of in new])
    tokens = np.concatenate(new)
    shuffled = np.random.default_rng().permutation(len(tokens))  # rounds show nothing: their points are random
    field, tokens = field[shuffled], tokens[shuffled]
    sent = 0
    for start in range(0, len(tokens), oprf.ROUND_TOKENS):
        these, those = field[start : start + oprf.ROUND_TOKENS], tokens[start : start + oprf.ROUND_TOKENS]
        inputs = [schema.inputs(int(of), [int(token)])[0] for of, token in zip(these, those, strict=True)]
        outputs, size = _evaluate_round(inputs, public, ask)
        values.add(these, those, outputs)
        sent += size
        if progress is not None:
            progress(sent)
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
    progress: oprf.Progress | None = None,
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
        Called with the number of elements done.
    """
    evaluate_tokens(table.schema, queries, table.public, values, ask, progress)
    distinct = [np.unique(query.tokens.token) for query in queries]
    entries = [table.open(place, values.take(place, tokens)) for place, tokens in enumerate(distinct)]
    return OpenedRows(TokenPairs.of(table.schema, queries, entries, table.rows), *table.open_vectors(entries))
