"""The exchange of direct linking: a primary has its tokens evaluated blindly and keeps their values for later jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fedsim.errors import PeerError
from fedsim.linkage.direct import oprf
from fedsim.linkage.direct.encrypted_table import EncryptedTable, round_up
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.token_kinds import distinct
from fedsim.linkage.direct.token_links import TokenPairs
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.linkage.direct.token_values import TokenValues
from fedsim.types import Flags, Floats32, Integers

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
