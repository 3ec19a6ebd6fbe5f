"""The attacks that follow from direct linking: by the primary, on the encrypted table of a secondary.

The audit builds the table with a throwaway key; the success of attacks does not depend on the key. The vector of a row
is its number, by which the audit knows what was opened.

Letters: n own records, m rows of the secondary, E entries of its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.random import Generator

from fedsim.cells import CellType
from fedsim.config.job import SecondaryTerms
from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.errors import InputError, PolicyError
from fedsim.linkage.direct import PlaceTokens, TextTokens, TokenField, oprf
from fedsim.linkage.direct.encrypted_table import (
    VALUE_BYTES,
    EncryptedTable,
    OpenedEntries,
    build_table,
    entry_keys,
    listed_tokens,
)
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.token_kinds import ALONE, mix
from fedsim.linkage.direct.token_links import TokenLinks, TokenPairs
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.pipeline.release import Release
from fedsim.privacy import keyed_prng
from fedsim.privacy.geodesy import great_circle_metres
from fedsim.runtime import run_store
from fedsim.splitnn.party_model import RandomSource
from fedsim.training.data import as_features
from fedsim.types import Floats, Integers, Words
from fedsim_audit.attacks import cut_layer_attacks, location_attacks
from fedsim_audit.attacks.attack_finding import NAMED, TOKENS_NEEDED, AttackFinding, binomial_estimate, sample_targets
from fedsim_audit.attacks.location_attacks import LocationGuesses, TrueLocations
from fedsim_audit.attacks.similarity_attacks import LinksByPartner, PrimaryView
from fedsim_audit.audit_report import AuditSettings, Guarantee, PlannedAttack, SkippedAttack
from fedsim_audit.linkage_attacks import PRIOR_SLACK, primary_attack
from fedsim_audit.split_attacks import TrainingInputs, feature_columns, sample_known_rows

UNKNOWN = bytes(VALUE_BYTES)  # instead of the value of a token that was not evaluated, or is not listed
MIN_WORD = 4  # letters of a word that an attacker knows
NOT_PLANNED = (
    SkippedAttack(Adversary.COORDINATOR, "all attacks of a coordinator", "this job has none, so nobody can run them"),
    SkippedAttack(
        Adversary.SECONDARY, "labels", "a secondary receives random points and their number; no label affects either"
    ),
)


@dataclass(frozen=True, eq=False, repr=False)
class OpenedTable:
    """What evaluated tokens open: entries by field, pairs, and the rows whose vectors they open.

    ``pseudonym`` and ``row`` are the numbers of these rows in the encrypted table and in the secondary's own.
    """

    entries: list[OpenedEntries]
    pairs: TokenPairs
    pseudonym: Integers
    row: Integers


@dataclass(frozen=True, eq=False, repr=False)
class DirectLinkage:
    """The identifiers of both sides, and the encrypted table.

    ``max_tokens`` limits what the primary may ask; tokens of fewer than ``min_rows`` rows are not listed.
    """

    name: str
    terms: SecondaryTerms
    primary: pl.DataFrame
    secondary: pl.DataFrame
    max_tokens: int
    seed: int
    min_rows: int = 1
    released: Release | None = None  # what leaves; by default every row

    @property
    def schema(self) -> TokenSchema:
        return self.terms.token_schema

    @cached_property
    def key(self) -> oprf.SecretKey:
        """The throwaway key of the table."""
        return oprf.SecretKey.derive(np.random.default_rng([self.seed, 1]).bytes(32), b"audit")

    @cached_property
    def tokens(self) -> list[FieldTokens]:
        """The tokens of the table's entries: the secondary's rows, or groups of them."""
        return self.schema.row_tokens(self.secondary) if self.released is None else self.released.tokens

    @cached_property
    def table(self) -> EncryptedTable:
        """The table as the primary receives it."""
        numbers = np.arange(self.tokens[0].n, dtype=np.float32)[:, np.newaxis]
        return build_table(self.schema, self.tokens, numbers, self.key, min_rows=self.min_rows)

    @cached_property
    def values(self) -> list[dict[int, bytes]]:
        """The values of all tokens that the table lists, by field."""
        found = []
        for place, (field, of) in enumerate(zip(self.schema.fields, self.tokens, strict=True)):
            distinct = np.unique(listed_tokens(field.kind, of.tokens, self.min_rows).token).tolist()
            values = oprf.map_batches(self.key.evaluate, self.schema.inputs(place, distinct))
            found.append(dict(zip(distinct, chain.from_iterable(values), strict=True)))
        return found

    @cached_property
    def order(self) -> Integers:
        """The entry behind each pseudonym, (m,), or -1 if no token opens it: a row, or a group of rows."""
        entries = [self.table.open(place, list(values.values())) for place, values in enumerate(self.values)]
        pseudonym, numbers = self.table.open_vectors(entries)
        order = np.full(self.table.rows, -1, np.int64)
        order[pseudonym] = numbers[:, 0]
        return order

    @cached_property
    def honest(self) -> OpenedTable:
        """What the primary's own records open."""
        return self.open(self.schema.query_tokens(self.primary))

    @cached_property
    def links(self) -> TokenLinks:
        """The links of the primary's own records."""
        opened = np.isin(np.arange(self.table.rows), self.honest.pseudonym)
        rivals = self.honest.pairs.fit_rivals(np.ones(len(self.primary), dtype=bool))
        return self.honest.pairs.best(min(self.terms.k, self.table.rows), rivals, opened)

    def rows_behind(self, pseudonyms: Integers) -> tuple[Integers, Integers]:
        """Return all rows behind some pseudonyms, and for each of them the place of its pseudonym among these."""
        place = np.arange(len(self.secondary)) if self.released is None else self.released.place
        number = np.full(self.table.rows + 1, -1)  # of an entry among the pseudonyms; the last is that of no entry
        number[self.order[pseudonyms]] = np.arange(len(pseudonyms))
        rows = np.flatnonzero(number[place] >= 0)
        return rows, number[place[rows]]

    def open(self, queries: Sequence[FieldTokens], evaluated: Sequence[Words] | None = None) -> OpenedTable:
        """Open what the tokens of records open; by default all of them are evaluated."""
        entries = []
        for place, query in enumerate(queries):
            tokens = np.unique(query.tokens.token)
            asked = np.ones(len(tokens), dtype=bool) if evaluated is None else np.isin(tokens, evaluated[place])
            known = self.values[place]
            values = [
                known.get(token, UNKNOWN) if of else UNKNOWN for token, of in zip(tokens.tolist(), asked, strict=True)
            ]
            entries.append(self.table.open(place, values))
        pseudonym, numbers = self.table.open_vectors(entries)
        pairs = TokenPairs.of(self.schema, queries, entries, self.table.rows)
        return OpenedTable(entries, pairs, pseudonym, numbers[:, 0].astype(np.int64))

    def places(self, field: TokenField, frame: pl.DataFrame) -> Floats:
        """Return latitude and longitude of a table's records; NaN where they are missing."""
        return frame.select(field.columns).cast(pl.Float64).fill_null(np.nan).to_numpy()


def direct_attacks(linkage: DirectLinkage, settings: AuditSettings, rng: Generator) -> Iterator[PlannedAttack]:
    """Plan every attack on a linkage without a coordinator."""
    fields = list(enumerate(linkage.schema.fields))
    promised = Guarantee(f"max_tokens={linkage.max_tokens:,}, which limits guesses", claimed=True)
    run, learns = partial(dictionary_attack, linkage, rng), "rows that its own records do not reach"
    yield _planned(AttackKind.DICTIONARY, "dictionary", learns, run, promised)
    for place, field in fields:
        which = f" ({field.columns[0]})" if len(fields) > 1 else ""
        if not linkage.terms.level.LISTS_ROWS:
            if isinstance(field.kind, PlaceTokens):
                yield _reached_places(linkage, place, which, settings, rng)
            continue
        if isinstance(field.kind, TextTokens):
            promised = Guarantee("a row opens with two words in common, or with all of them", 0.0)
            run, learns = partial(one_word_attack, linkage, place, settings.targets, rng), "a row by one of its words"
            yield _planned(AttackKind.ONE_WORD, f"one word{which}", learns, run, promised)
        if isinstance(field.kind, PlaceTokens):
            yield from _place_attacks(linkage, place, which, settings, rng)
        else:
            shown = Guarantee(
                f"{' and '.join(field.columns)} of a reached row: disclosed, not protected", disclosed=True
            )
            learns, run = f"{field.columns[0]} of a reached row", partial(joined_links_attack, linkage, place)
            yield _planned(AttackKind.JOINED_LINKS, f"joined links{which}", learns, run, shown)
    promised = Guarantee("without evaluations the table shows only its rows", PRIOR_SLACK + _common_token(linkage))
    run, learns = partial(table_attack, linkage, rng), "which token an entry of the table belongs to"
    yield _planned(AttackKind.TABLE_SIZES, "list lengths", learns, run, promised)


def _planned(
    kind: AttackKind,
    title: str,
    learns: str,
    run: Callable[[], AttackFinding],
    promised: Guarantee | Callable[[], Guarantee],
) -> PlannedAttack:
    def titled() -> AttackFinding:
        return replace(run(), attack=title, kind=kind)

    return primary_attack(kind, title, learns, titled, promised)


# Made-up records and tokens


def dictionary_attack(linkage: DirectLinkage, rng: Generator) -> AttackFinding:
    """Spend all tokens that the secondary evaluates on a list of its own records and as many made-up ones.

    Tokens that open a row by themselves come first, and of these the ones that most of the list have in common, such as
    wide cells. Guessing is what honest records reach.
    """
    listed = pl.concat([linkage.secondary, made_up_records(linkage, rng)])
    queries = linkage.schema.query_tokens(listed)
    distinct = [np.unique(query.tokens.token, return_index=True, return_counts=True) for query in queries]
    alone = [query.tokens.share[first] == ALONE for query, (_, first, _) in zip(queries, distinct, strict=True)]
    tokens, counts = (np.concatenate(of) for of in zip(*((token, count) for token, _, count in distinct), strict=True))
    fields = np.repeat(np.arange(len(queries)), [len(token) for token, _, _ in distinct])
    order = np.lexsort((rng.random(len(tokens)), -counts, ~np.concatenate(alone)))
    asked = order[: _evaluated(linkage, len(order))]
    opened = linkage.open(queries, [tokens[asked][fields[asked] == place] for place in range(len(queries))])
    pairs, m = opened.pairs, linkage.table.rows
    best = np.lexsort((rng.random(len(pairs.row)), -pairs.similarity.sum(axis=1), pairs.row))
    row, first = np.unique(pairs.row[best], return_index=True)
    identity, true = listed.hash_rows().to_numpy(), linkage.order[row]
    single = len(identity) == 2 * m  # else entries are groups, which have no name
    named = (true >= 0) & (identity[pairs.record[best[first]]] == identity[true]) & single
    needed = sum(len(np.unique(query.tokens.token)) for query in linkage.schema.query_tokens(linkage.primary))
    figures = {"tokens evaluated": float(len(asked)), TOKENS_NEEDED: float(needed)}
    figures |= {NAMED: float(named.sum()) / m}
    score, honest = binomial_estimate(len(opened.row), m), len(linkage.honest.row) / m
    what = "share of the rows opened; guessing is the share that honest records open"
    knew = f"a list of {len(listed):,} records, half of them real"
    kind, who = AttackKind.DICTIONARY, Adversary.PRIMARY
    return AttackFinding("dictionary", kind, who, what, score, honest, m, knew, figures)


def made_up_records(linkage: DirectLinkage, rng: Generator) -> pl.DataFrame:
    """Return as many records as the secondary has, with cells that are like those of its rows."""
    frame, columns = linkage.secondary, {}
    for field in linkage.schema.fields:
        for name in field.columns:
            column, m = frame[name], len(frame)
            mixed = column.gather(rng.integers(0, m, m))
            if column.dtype.is_numeric() and column.null_count() < m:
                low, high = (float(np.asarray(end)) for end in (column.min(), column.max()))
                mixed = pl.Series(name, rng.uniform(low, high, m)).cast(column.dtype)
            elif CellType(field.kind.CELLS) is CellType.TEXT:
                halves = zip(column.to_list(), mixed.to_list(), strict=True)
                mixed = pl.Series(name, [_joined_halves(left or "", right or "") for left, right in halves])
            columns[name] = mixed
    return pl.DataFrame(columns).select(frame.columns).cast(frame.schema)


def _joined_halves(left: str, right: str) -> str:
    """Return the first words of one name with the last ones of another."""
    first, last = left.split(), right.split()
    return " ".join([*first[: (len(first) + 1) // 2], *last[len(last) // 2 :]])


def _evaluated(linkage: DirectLinkage, wanted: int) -> int:
    """Return how many tokens the secondary evaluates before it refuses."""
    spent, size = 0, min(wanted, oprf.ROUND_TOKENS)
    with TemporaryDirectory() as folder:
        store = KeyStore(Path(folder))
        store.create("audit", datetime.now(UTC), linkage.key)
        while size and spent < wanted:
            batch = min(size, wanted - spent)
            try:
                store.charge("audit", "primary", batch, linkage.max_tokens)
                spent += batch
            except PolicyError:
                size = batch // 2
    return spent


def one_word_attack(linkage: DirectLinkage, place: int, most: int, rng: Generator) -> AttackFinding:
    """Ask for one word of each of some names that have several."""
    column = linkage.schema.fields[place].columns[0]
    words = [
        [word for word in (text or "").split() if word.isalpha() and len(word) >= MIN_WORD]
        for text in linkage.secondary[column].to_list()
    ]
    several = [row for row, of in enumerate(words) if len({word.casefold() for word in of}) > 1]
    if not several:
        raise InputError(f"no cell of {column} has several words", code="no-targets")
    rows = sample_targets(np.array(several), most, rng)
    known = pl.Series(column, [words[row][int(rng.integers(len(words[row])))] for row in rows.tolist()])
    none, queries = np.zeros(0, np.int64), linkage.schema.query_tokens(linkage.secondary[rows].with_columns(known))
    queries = [
        of if at == place else FieldTokens(of.tokens.take(none), of.columns, none, of.n)
        for at, of in enumerate(queries)
    ]
    pairs = linkage.open(queries).pairs
    found = pairs.opened & (linkage.order[pairs.row] == rows[pairs.record])
    score, knew = binomial_estimate(int(found.sum()), len(rows)), "one word of each of these rows"
    kind, who, what = AttackKind.ONE_WORD, Adversary.PRIMARY, "share of rows that one of their words opens"
    return AttackFinding("one word", kind, who, what, score, 0.0, len(rows), knew)


# What reached rows show, and what others do


def _place_attacks(
    linkage: DirectLinkage, place: int, which: str, settings: AuditSettings, rng: Generator
) -> Iterator[PlannedAttack]:
    field = linkage.schema.fields[place]
    yield _reached_places(linkage, place, which, settings, rng)
    learns = f"where a row is that it does not reach, within {settings.metres:g} m{which}"
    run = partial(unreached_attack, linkage, place, settings.metres, rng)
    promised = partial(_best_single_place, linkage, field, settings.metres)
    yield _planned(AttackKind.UNREACHED, f"unreached rows{which}", learns, run, promised)


def _reached_places(
    linkage: DirectLinkage, place: int, which: str, settings: AuditSettings, rng: Generator
) -> PlannedAttack:
    shown = linkage.schema.fields[place].kind.shown
    promised = Guarantee(f"a reached row discloses its place {shown}, not more precisely", disclosed=True)
    if not linkage.terms.level.LISTS_ROWS:
        least = f"a cell of at least {linkage.terms.m} rows discloses their place; none is finer than {shown[3:]}"
        promised = Guarantee(least, disclosed=True)
    learns = f"where a reached row is, within {settings.metres:g} m{which}"
    run = partial(cells_attack, linkage, place, settings.metres, rng)
    return _planned(AttackKind.CELLS, f"reached rows{which}", learns, run, promised)


def cells_attack(linkage: DirectLinkage, place: int, metres: float, rng: Generator) -> AttackFinding:
    """Locate every reached row in the middle of the finest cell that its entries show."""
    pseudonym, guess = _located_rows(linkage, place)
    knew = "the finest cells of the rows that its records reach"
    rows, behind = linkage.rows_behind(pseudonym)
    guesses = LocationGuesses("reached rows", knew, rows, guess[behind])
    return _located(linkage, place, guesses, metres, rng)


def unreached_attack(linkage: DirectLinkage, place: int, metres: float, rng: Generator) -> AttackFinding:
    """Locate every other row where the reached row is that stands nearest to it in the table."""
    pseudonym, places = _located_rows(linkage, place)
    present = np.isin(linkage.order, linkage.tokens[place].rows)
    others = np.flatnonzero(present & ~np.isin(np.arange(linkage.table.rows), linkage.honest.pseudonym))
    if not len(others):
        raise InputError("its records reach all rows", code="no-targets")
    if not len(pseudonym):
        raise InputError("its records reach no row", code="no-rows")
    nearest = np.abs(others[:, np.newaxis] - pseudonym).argmin(axis=1)
    knew = "the order of the rows in the table, and where reached rows are"
    guesses = LocationGuesses("unreached rows", knew, linkage.order[others], places[nearest])
    return _located(linkage, place, guesses, metres, rng)


def _located_rows(linkage: DirectLinkage, place: int) -> tuple[Integers, Floats]:
    """Return the rows that the primary's records reach by a place, and the middles of their finest cells."""
    kind, opened = linkage.schema.fields[place].kind, linkage.honest.entries[place]
    if not isinstance(kind, PlaceTokens):
        raise InputError(f"tokens of kind '{kind.KIND}' show no place", code="no-place")
    pseudonym, first = np.unique(opened.row, return_index=True)
    return pseudonym, kind.middles(opened.hint[first])


def _located(
    linkage: DirectLinkage, place: int, guesses: LocationGuesses, metres: float, rng: Generator
) -> AttackFinding:
    field = linkage.schema.fields[place]
    own = linkage.places(field, linkage.primary)
    truth = TrueLocations(linkage.places(field, linkage.secondary), metres)
    kept = np.isfinite(truth.places).all(axis=1)
    number = np.cumsum(kept) - 1  # rows without a place are no targets
    guesses = replace(guesses, row=number[guesses.row])
    truth = replace(truth, places=truth.places[kept])
    return location_attacks.location_finding(guesses, truth, own[np.isfinite(own).all(axis=1)], rng)


def _best_single_place(linkage: DirectLinkage, field: TokenField, metres: float) -> Guarantee:
    """Return what guessing one place for all rows achieves."""
    places = linkage.places(field, linkage.secondary)
    places = places[np.isfinite(places).all(axis=1)]
    some = places[:: 1 + len(places) // 500]
    near = [float((great_circle_metres(places, one) <= metres).mean()) for one in some]
    return Guarantee("an unreached row shows nothing", min(1.0, max(near) + PRIOR_SLACK))


def joined_links_attack(linkage: DirectLinkage, place: int) -> AttackFinding:
    """Read an identifier of every reached row from what it has in common with all records together.

    A row shows its finest bin where its kind of tokens has bins; otherwise the guess is the cell of the record that
    resembles it most.
    """
    field, honest, of = linkage.schema.fields[place], linkage.honest, linkage.tokens[place]
    if field.kind.shown:
        pseudonym, first = np.unique(honest.entries[place].row, return_index=True)
        guess, truth = honest.entries[place].hint[first], np.zeros(len(linkage.secondary), np.int64)
        truth[of.rows[of.tokens.record]] = of.tokens.hint
    else:
        pairs = honest.pairs
        best = np.lexsort((pairs.record, -pairs.similarity[:, place], pairs.row))
        best = best[np.isin(pairs.row[best], honest.pseudonym)]
        pseudonym, first = np.unique(pairs.row[best], return_index=True)
        guess, truth = pairs.cells[pairs.record[best[first]], place], np.zeros(len(linkage.secondary), np.uint64)
        np.add.at(truth, of.rows[of.tokens.record], mix(of.tokens.token))
    right = guess == truth[linkage.order[pseudonym]]
    common = float(np.unique(truth, return_counts=True)[1].max()) / len(truth)
    score, knew = binomial_estimate(int(right.sum()), len(right)), "its own records and all their links"
    kind, who, what = (
        AttackKind.JOINED_LINKS,
        Adversary.PRIMARY,
        f"share of reached rows whose {field.columns[0]} it reads",
    )
    return AttackFinding("joined links", kind, who, what, score, common, len(right), knew)


def table_attack(linkage: DirectLinkage, rng: Generator) -> AttackFinding:
    """Name the token of every entry without an evaluation, by the number of entries that stand under one tag.

    Whoever has the file and a list of all tokens with their frequencies takes one as frequent as the tag.
    """
    table, named, total = linkage.table, 0, 0
    for place, (field, of, values) in enumerate(
        zip(linkage.schema.fields, linkage.tokens, linkage.values, strict=True)
    ):
        if not values:
            continue
        listed = listed_tokens(field.kind, of.tokens, linkage.min_rows)
        tokens, lengths = np.unique(listed.token, return_counts=True)
        token = np.repeat(np.arange(len(tokens)), lengths)
        slot = np.arange(len(token)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        known = [values[one] for one in tokens.tolist()]
        tags = b"".join(
            entry_keys(known[at], table.salt, one)[0] for at, one in zip(token.tolist(), slot.tolist(), strict=True)
        )
        tag = np.frombuffer(tags, "<u8")
        first, last = (np.searchsorted(table.tags[place], tag, side=side) for side in ("left", "right"))
        shown, size = last > first, last - first
        order = np.argsort(lengths, kind="stable")
        ranked, distinct = lengths[order], np.unique(lengths)
        nearest = distinct[np.abs(distinct[:, np.newaxis] - size[shown]).argmin(axis=0)]
        low, high = (np.searchsorted(ranked, nearest, side=side) for side in ("left", "right"))
        guess = order[rng.integers(low, high)]
        named += int((size[shown] * (guess == token[shown])).sum())
        total += int(size[shown].sum())
    entries = float(sum(map(len, table.tags)))
    figures = {"rows": float(table.rows), "entries, padding included": entries}
    score, knew = binomial_estimate(named, total), "the encrypted table, and all tokens with their frequencies"
    kind, who, what = AttackKind.TABLE_SIZES, Adversary.PRIMARY, "share of entries whose token is named"
    return AttackFinding("list lengths", kind, who, what, score, _common_token(linkage), total, knew, figures)


def _common_token(linkage: DirectLinkage) -> float:
    """Return the share of entries that belong to the most frequent token of their field."""
    lengths = [
        np.unique(listed_tokens(field.kind, of.tokens, linkage.min_rows).token, return_counts=True)[1]
        for field, of in zip(linkage.schema.fields, linkage.tokens, strict=True)
    ]
    return sum(int(of.max(initial=0)) for of in lengths) / max(1, sum(int(of.sum()) for of in lengths))


def feature_attacks(linkage: DirectLinkage, inputs: TrainingInputs, rng: Generator) -> Iterator[PlannedAttack]:
    """Plan the attacks on the features of linked rows, whose embeddings the primary opens."""
    job = inputs.job
    secret = np.random.default_rng([linkage.seed, 3]).bytes(keyed_prng.SECRET_BYTES)
    entries, source = inputs.secondary, None
    if linkage.released is not None:
        entries, source = linkage.released.features, linkage.released.source
    used = run_store.protect_features(entries, job, secret, linkage.name, source)
    sent = run_store.embedded_rows(used, job, RandomSource(int.from_bytes(secret[:7], "big"), linkage.name))
    links = linkage.links
    named = LinksByPartner.of(PrimaryView(links.partner, 1.0 - links.distance))
    rows, of = linkage.rows_behind(named.row)
    opened, features = sent[linkage.order[named.row]][of].astype(np.float64), feature_columns(inputs.secondary)[rows]
    known, learns = sample_known_rows(len(rows), rng), f"the features of rows of {linkage.name} that it reaches"
    shown = Guarantee("the embedding of a reached row is disclosed", disclosed=True)
    run = partial(cut_layer_attacks.inversion_attack, opened, features, known, rng=rng)
    yield primary_attack(AttackKind.INVERSION, "feature inversion", learns, run, shown)
    if inputs.labelled:  # else a copy of the secondary's own table stands in for the primary's
        behind = cut_layer_attacks.listing_records(named, feature_columns(as_features(inputs.primary.features)))[of]
        run = partial(cut_layer_attacks.joint_inversion_attack, opened, behind, features, known, rng=rng)
        yield primary_attack(AttackKind.INVERSION, "joint inversion", learns, run, shown)
