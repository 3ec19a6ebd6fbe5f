"""Direct linking: recall of tokens held against plain TF-IDF and exact neighbours, rows opened, and what it costs.

``fedsim lab bench direct_linking`` prints all tables. After two dashes, ``--names N`` and ``--places N`` only link N x
N records with all work of both sides, and ``--quality`` only measures recall: on tokens in the clear, because links
through the encrypted table are equal (``tests/unit/linkage/direct``). Real tables are read from ``FEDSIM_DATA``.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.feature_extraction.text import TfidfVectorizer

from fedsim.linkage import topk
from fedsim.linkage.direct import PlaceTokens, TextTokens, TokenField, TokenSchema, oprf
from fedsim.linkage.direct.encrypted_table import NO_PLACE, EncryptedTable, OpenedEntries, build_table, listed_tokens
from fedsim.linkage.direct.exchange import TokenValues, evaluate_tokens
from fedsim.linkage.direct.token_kinds import NO_SHARE
from fedsim.linkage.direct.token_links import TokenLinks, TokenPairs
from fedsim.linkage.direct.token_schema import FieldTokens
from fedsim.pipeline.direct_linker import DirectLinker
from fedsim.types import Floats, Integers
from fedsim.wizard.proposal import CELLS_OF_ROWS
from fedsim_lab.datasets.generated import generate_firms
from linkage_data import DATA
from quality_data import TextPair, dense_places, text_sets

RIVALS, PLACE_QUERIES, PLACE_K, N_VALUES = 3, 2_000, 20, 8
Table = Mapping[str, Any]


def entries_in_the_clear(
    schema: TokenSchema, rows: Sequence[FieldTokens], queries: Sequence[FieldTokens]
) -> list[OpenedEntries]:
    """Return what the queries' tokens would open, without encryption: pseudonyms are row numbers."""
    opened = []
    for field, theirs, ours in zip(schema.fields, rows, queries, strict=True):
        listed = listed_tokens(field.kind, theirs.tokens)
        listed = listed.take(np.argsort(listed.token, kind="stable"))
        distinct = np.unique(ours.tokens.token)
        first, last = (np.searchsorted(listed.token, distinct, side=side) for side in ("left", "right"))
        length = last - first
        at = np.arange(length.sum()) + np.repeat(first - (np.cumsum(length) - length), length)
        token = np.repeat(np.arange(len(distinct)), length)
        places = np.where(listed.share == NO_SHARE, NO_PLACE, listed.share % NO_PLACE)
        y = np.zeros((len(at), 16), np.uint8)
        opened.append(OpenedEntries(token, length, theirs.rows[listed.record[at]], places[at], y, listed.hint[at]))
    return opened


def openable(entries: Sequence[OpenedEntries], rows: int) -> np.ndarray:
    """Return which rows open: those with one share at 0 or two different ones, from any record."""
    pairs = np.unique(np.concatenate([np.column_stack([of.row, of.x]) for of in entries]), axis=0)
    return np.bincount(pairs[:, 0], np.where(pairs[:, 1] == 0, 2, pairs[:, 1] != NO_PLACE), rows) >= 2


def plain_links(schema: TokenSchema, theirs: object, ours: object, k: int) -> tuple[TokenPairs, TokenLinks, TokenLinks]:
    """Link in the clear, among all rows that share a token and among those that open."""
    rows, queries = schema.row_tokens(theirs), schema.query_tokens(ours)
    entries, n = entries_in_the_clear(schema, rows, queries), rows[0].n
    pairs = TokenPairs.of(schema, queries, entries, n)
    rivals = pairs.fit_rivals(np.ones(queries[0].n, np.bool_))
    return pairs, *(pairs.best(k, rivals, among) for among in (np.ones(n, np.bool_), openable(entries, n)))


def tfidf_ranks(pair: TextPair) -> tuple[Integers, Integers]:
    """Return the rank of the true match by TF-IDF of 3-grams, and by the same relative to the row's rivals."""
    model = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3))
    theirs = model.fit_transform(pair.theirs)
    scores = (model.transform(pair.ours) @ theirs.T).toarray()
    mean = np.sort(scores, axis=0)[-RIVALS:].mean(axis=0)
    known = np.flatnonzero(pair.truth >= 0)
    ranks = []
    for values in (scores, scores / np.sqrt(np.maximum(mean, 1e-9))):
        true = values[known, pair.truth[known]][:, np.newaxis]
        ranks.append((values[known] > true).sum(axis=1))
    return ranks[0], ranks[1]


def token_ranks(links: TokenLinks, truth: Integers) -> Integers:
    """Return the rank of the true match, or a large number."""
    known = np.flatnonzero(truth >= 0)
    hits = links.partner[known] == truth[known, np.newaxis]
    return np.where(hits.any(axis=1), hits.argmax(axis=1), 1 << 20)


def show_recall(name: str, ranks: Integers, note: str = "") -> None:
    print(f"  {name:34s} {(ranks < 1).mean():.3f} / {(ranks < 10).mean():.3f}  {note}", flush=True)


def measure_names() -> None:
    for title, pairs in text_sets().items():
        pair = pairs[0]
        print(f"{title}: {len(pair.ours):,} x {len(pair.theirs):,}, recall@1 / @10")
        plain, relative = tfidf_ranks(pair)
        show_recall("TF-IDF of 3-grams", plain)
        show_recall("TF-IDF of 3-grams, relative", relative)
        for samples in (32, 80):
            schema = TokenSchema((TokenField(("name",), TextTokens(samples=samples)),))
            found, *links = plain_links(schema, {"name": pair.theirs}, {"name": pair.ours}, 10)
            n = len(pair.ours)
            note = f"{len(found.row) / n:.1f} rows reached, {found.opened.sum() / n:.1f} opened per record"
            for kind, of in zip(("reached", "opened"), links, strict=True):
                ranks = token_ranks(of, pair.truth)
                ratio = (ranks < 1).mean() / (plain < 1).mean()
                show_recall(f"{samples} samples, rows {kind}", ranks, f"{ratio:.2f} of TF-IDF; {note}")


def place_tables() -> Iterator[tuple[str, Floats, Floats]]:
    """Yield tables of places, (lat, lon): the primary's and the secondary's."""
    for title, ours, our_columns, theirs, their_columns in (
        ("house", "house/lianjia_sample.csv.gz", ("Lat", "Lng"), "house/airbnb_beijing.csv.gz", ("lat", "lon")),
        ("hdb", "hdb/flats.csv.gz", ("lat", "lon"), "hdb/airbnb_singapore.csv.gz", ("latitude", "longitude")),
    ):
        if (DATA / ours).is_file():
            read = [
                pl.read_csv(DATA / file, columns=list(columns), infer_schema_length=None).select(columns).drop_nulls()
                for file, columns in ((ours, our_columns), (theirs, their_columns))
            ]
            yield title, read[0].unique(maintain_order=True).to_numpy(), read[1].to_numpy()


def measure_places() -> None:
    kinds = {"all widths": {}, "as init proposes": CELLS_OF_ROWS}
    for title, places, theirs in place_tables():
        ours = np.random.default_rng(0).permutation(places)[:PLACE_QUERIES]
        exact, _ = topk(ours, theirs, metric="great-circle", k=PLACE_K)
        print(f"{title}: {len(ours):,} x {len(theirs):,} places, recall@{PLACE_K} of the exact neighbours")
        tables = [{"lat": of[:, 0], "lon": of[:, 1]} for of in (theirs, ours)]
        for metres in (25, 50, 100, 200):
            for name, settings in kinds.items():
                schema = TokenSchema((TokenField(("lat", "lon"), PlaceTokens(metres=metres, **settings)),))
                pairs, links, _ = plain_links(schema, *tables, PLACE_K)
                queries = schema.query_tokens(tables[1])[0].tokens.token
                found = (links.partner[:, :, np.newaxis] == exact[:, np.newaxis]).any(axis=2)
                counts = f"{len(np.unique(queries)):,} tokens, {len(pairs.row) / len(ours):.0f} rows reached per record"
                print(f"  {metres:3d} m, {name}: {found.mean():.3f}; {counts}", flush=True)


def name_tables(n: int) -> tuple[TokenSchema, Table, Table]:
    """Return the tables of the primary and of the secondary: generated firms."""
    drawn = generate_firms(np.random.default_rng(0), ours=n, theirs=n)
    ours, theirs = ({"name": side["name"].to_list()} for side in (drawn.ours, drawn.theirs))
    return TokenSchema((TokenField(("name",), TextTokens()),)), ours, theirs


def spread_places(n: int) -> tuple[TokenSchema, Table, Table]:
    """Return even places in a box of 60 x 55 km, the hardest case: no place shares its cells with others."""
    ours, theirs = (
        side[np.linspace(0, len(side) - 1, n).astype(int)] for side in dense_places(np.random.default_rng(0))
    )
    kind = PlaceTokens(**CELLS_OF_ROWS)
    tables = ({"lat": side[:, 0], "lon": side[:, 1]} for side in (ours, theirs))
    return TokenSchema((TokenField(("lat", "lon"), kind),)), *tables


@dataclass
class Cost:
    """Seconds, CPU seconds of all cores, and what was asked, of the steps of one linkage."""

    seconds: float = 0.0
    cpu: float = 0.0
    tokens: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Time a step and print it with the notes that the block adds."""
        notes: list[str] = []
        start = time.perf_counter(), time.process_time()
        yield notes
        seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        self.seconds, self.cpu = self.seconds + seconds, self.cpu + cpu
        print(f"  {name:34s} {seconds:7.1f} {cpu:7.1f}  {' '.join(notes)}", flush=True)


def measure_cost(title: str, n: int, tables: tuple[TokenSchema, Table, Table], k: int) -> float:
    """Link n x n records with all work of both sides; print what every step costs, and return all CPU seconds."""
    schema, ours, theirs = tables
    key, cost = oprf.SecretKey.generate(), Cost()
    print(f"{n:,} x {n:,} {title}, load {os.getloadavg()[0]:.1f}; seconds, CPU seconds of all cores")

    def ask(blinded: list[bytes]) -> list[oprf.EvaluatedBatch]:
        cost.tokens += len(blinded)
        return oprf.map_batches(key.evaluate_blinded, blinded)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        with cost.step("secondary: table") as notes:
            build_table(schema, theirs, np.zeros((n, N_VALUES), np.float32), key).save(path)
            table = EncryptedTable.load(path, schema)
            megabytes = path.stat().st_size / 1e6
            notes.append(f"{len(table.tags[0]):,} entries, {megabytes:.1f} MB")
        linker = DirectLinker("theirs", table, k, TokenValues(schema, key.public, Path(folder) / "values"), ask)
        with cost.step("primary: tokens of records"):
            queries = linker.encode_new(ours)
        with cost.step("both: evaluation") as notes:
            evaluate_tokens(schema, queries, key.public, linker.values, ask)
            notes.append(f"{cost.tokens:,} tokens, {64 * cost.tokens / 1e6:.1f} MB both ways")
        with cost.step("primary: opening and links") as notes:
            linker.link(ours, np.arange(n))
            notes.append(f"{len(linker.vectors):,} rows opened")
        first, seconds, cpu = cost.tokens, cost.seconds, cost.cpu
        another = DirectLinker("theirs", table, k, TokenValues(schema, key.public, Path(folder) / "values"), ask)
        with cost.step("a second job") as notes:
            another.link(ours, np.arange(n))
            notes.append(f"{cost.tokens - first} new evaluations")
        assert cost.tokens == first, "a second job on the same tables asks for nothing"
    print(f"  {'all work of both sides':34s} {seconds:7.1f} {cpu:7.1f}  {megabytes + 64 * first / 1e6:.1f} MB")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"  peak memory {memory:,.0f} MB; {1000 * cpu / n:.2f} CPU ms and {first / n:.1f} tokens per record",
        flush=True,
    )
    return cpu


def main(words: Sequence[str] | None) -> None:
    """Print the chosen tables; without a choice, recall and the cost of 2,000 names."""
    parser = argparse.ArgumentParser("fedsim lab bench direct_linking --")
    parser.add_argument("--quality", action="store_true", help="measure recall only")
    parser.add_argument("--names", type=int, nargs="+", metavar="N", help="link N x N names only")
    parser.add_argument("--places", type=int, nargs="+", metavar="N", help="link N x N places only")
    chosen = parser.parse_args(words or ())
    if not (chosen.names or chosen.places):
        measure_names()
        measure_places()
    names = chosen.names or ([] if chosen.quality or chosen.places else [2_000])
    for n in names:
        cpu = measure_cost("names", n, name_tables(n), 10)
        for more in (200_000, 1_000_000):
            print(f"  linear: {more:,} x {more:,} take {cpu * more / n / 2 / 3600:.2f} h on two idle cores", flush=True)
    for n in chosen.places or ():
        measure_cost("places", n, spread_places(n), PLACE_K)
