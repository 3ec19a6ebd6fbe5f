"""The linker between two organisations without a third: oblivious tokens, and rows that the primary opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.errors import FingerprintError
from fedsim.linkage import fit_scale, similarities
from fedsim.linkage.direct.encrypted_table import EncryptedTable
from fedsim.linkage.direct.exchange import Ask, OpenedRows, TokenValues, open_rows
from fedsim.linkage.direct.token_links import NOBODY, FieldRivals, TokenLinks
from fedsim.linkage.direct.token_schema import FieldTokens
from fedsim.pipeline.linker import not_linked, unreadable_links
from fedsim.storage.tensor_file import load_tensors, save_tensors
from fedsim.types import AnyArray, Flags, Floats32, Integers, Links, Scale

FITTED_FORMAT = "fedsim direct links 1"


@dataclass(frozen=True, eq=False)
class FittedDirect:
    """What the training records fitted.

    The rivals and the scale of every field, ``among`` (rows,), the rows that are partners of a record, and ``nobody``
    (values,), the mean vector of all rows that were opened; ``salt`` is that of the table, whose pseudonyms these are.
    """

    rivals: list[FieldRivals]
    scales: list[Scale]
    among: Flags
    nobody: Floats32
    salt: bytes

    def save(self, path: Path) -> None:
        """Write it to a file."""
        tensors: dict[str, AnyArray] = {"among": self.among, "nobody": self.nobody}
        tensors["scales"] = np.array([[scale.mean, scale.deviation] for scale in self.scales])
        for place, rivals in enumerate(self.rivals):
            tensors |= {f"record.{place}": rivals.record, f"similarity.{place}": rivals.similarity}
        save_tensors(path, FITTED_FORMAT, tensors, {"salt": self.salt.hex()})

    @classmethod
    def load(cls, path: Path, secondary: str) -> FittedDirect:
        """Read what :meth:`save` wrote."""
        tensors, facts = load_tensors(path, FITTED_FORMAT)
        try:
            scales = [Scale(mean, deviation) for mean, deviation in tensors["scales"].tolist()]
            fields = range(len(scales))
            rivals = [FieldRivals(tensors[f"record.{place}"], tensors[f"similarity.{place}"]) for place in fields]
            return cls(rivals, scales, tensors["among"], tensors["nobody"], bytes.fromhex(facts["salt"]))
        except (LookupError, ValueError) as error:
            raise unreadable_links(secondary, error) from error


@dataclass(eq=False)
class DirectLinker:
    """Links records to the rows of a secondary's encrypted table; partners are pseudonyms.

    A record that reached fewer than K rows has the partner ``len(table)``, a row of no one: its similarity is that of
    nothing in common, and its vector the mean of all that were opened.

    Parameters
    ----------
    secondary, table
        Name and table of the secondary.
    k
        The number of partners per record.
    values, ask
        The values of tokens known so far, and what has the secondary evaluate others.
    fitted
        What :meth:`link` fitted to the training records.
    vectors
        Of the rows opened so far, by pseudonym.
    progress
        Called by :meth:`link` with the number of new tokens evaluated so far, and of all.
    """

    secondary: str
    table: EncryptedTable
    k: int
    values: TokenValues
    ask: Ask
    fitted: FittedDirect | None = None
    vectors: dict[int, Floats32] = field(default_factory=dict, repr=False)
    progress: Callable[[int, int], object] | None = None
    _known: Flags | None = field(default=None, init=False, repr=False)
    _counted: int = field(default=0, init=False, repr=False)

    def link(self, records: Any, training: Integers) -> Links:
        queries = self.encode_new(records)
        opened = self._open(queries, self.progress)
        counted = np.isin(np.arange(queries[0].n), training)
        rivals = opened.pairs.fit_rivals(counted)
        found = opened.pairs.best(self.k, rivals, opened.among)
        distances = 1.0 - found.similarity[counted]  # (n, K, F)
        scales = [fit_scale(of[np.isfinite(of)]) for of in np.moveaxis(distances, -1, 0)]
        linked = np.isin(np.arange(self.table.rows), found.partner)
        nobody = opened.vectors.mean(axis=0) if len(opened.rows) else np.zeros(self.table.n_values, np.float32)
        self.fitted = FittedDirect(rivals, scales, linked, nobody, self.table.salt)
        return self._as_links(found, self.fitted)

    def encode_new(self, records: Any) -> list[FieldTokens]:
        return self.table.schema.query_tokens(records)

    def needing_partner(self, queries: list[FieldTokens]) -> int:
        """Return of how many records the secondary must evaluate tokens."""
        needing = np.zeros(queries[0].n, np.bool_)
        for place, query in enumerate(queries):
            new = np.isin(query.tokens.token, self.values.missing(place, query.tokens.token))
            needing[query.rows[query.tokens.record[new]]] = True
        return int(needing.sum())

    def link_new(self, queries: list[FieldTokens]) -> Links:
        if self.fitted is None:
            raise not_linked(self.secondary)
        if self.fitted.salt != self.table.salt:
            changed = f"the encrypted table of secondary '{self.secondary}' changed since the model was trained"
            hint = "so its rows have other pseudonyms; ask for the table of the training, or train a new job"
            raise FingerprintError(f"{changed}, {hint}", code="table-changed")
        opened = self._open(queries)
        # A row that these tokens do not open can be a partner if its vector is known from training.
        known = self.fitted.among & self._known_rows()
        return self._as_links(opened.pairs.best(self.k, self.fitted.rivals, known), self.fitted)

    def vectors_of(self, rows: AnyArray) -> Floats32:
        """Return the vectors of partners, given by distinct pseudonyms, (U, values)."""
        if self.fitted is None:
            raise not_linked(self.secondary)
        nobody, none = self.table.rows, self.fitted.nobody
        found = [none if row == nobody else self.vectors[row] for row in rows.tolist()]
        return np.array(found, np.float32).reshape(-1, self.table.n_values)

    def _known_rows(self) -> Flags:
        """Return which rows have a known vector, (rows,); the flags are kept until there are more vectors."""
        if self._known is None or self._counted != len(self.vectors):
            self._known = np.zeros(self.table.rows, np.bool_)
            self._known[list(self.vectors)] = True
            self._counted = len(self.vectors)
        return self._known

    def _open(self, queries: list[FieldTokens], progress: Callable[[int, int], object] | None = None) -> OpenedRows:
        opened = open_rows(self.table, queries, self.values, self.ask, progress, self.k)
        self.vectors |= dict(zip(opened.rows.tolist(), opened.vectors, strict=True))
        return opened

    def _as_links(self, found: TokenLinks, fitted: FittedDirect) -> Links:
        fields = zip(np.moveaxis(1.0 - found.similarity, -1, 0), fitted.scales, strict=True)
        similarity = np.stack([similarities(distance, scale) for distance, scale in fields], axis=-1)  # (n, K, F)
        return Links(np.where(found.partner == NOBODY, self.table.rows, found.partner), similarity)
