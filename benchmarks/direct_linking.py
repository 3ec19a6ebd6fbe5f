"""Direct linking: quality of tokens held against plain TF-IDF, rows that can be opened, places, and what it costs.

``fedsim lab bench direct_linking`` prints all tables; after two dashes, ``--cost N`` only links N x N names with all
work of both sides, and ``--quality`` only measures recall. Recall is measured on tokens in the clear: links through the
encrypted table are equal (``tests/unit/linkage/direct``). Real tables are read from the folder ``FEDSIM_DATA``.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.feature_extraction.text import TfidfVectorizer

from fedsim.linkage import topk
from fedsim.linkage.direct import PlaceTokens, TextTokens, TokenField, TokenSchema, oprf
from fedsim.linkage.direct.encrypted_table import NO_PLACE, EncryptedTable, OpenedEntries, build_table, listed_tokens
from fedsim.linkage.direct.exchange import evaluate_tokens, open_rows
from fedsim.linkage.direct.token_kinds import NO_SHARE
from fedsim.linkage.direct.token_links import TokenLinks, TokenPairs
from fedsim.linkage.direct.token_schema import FieldTokens
from fedsim.linkage.direct.token_values import TokenValues
from fedsim.types import Floats, Integers
from fedsim_lab.datasets.generated import generate_firms
from linkage_data import DATA
from quality_data import TextPair, text_sets

RIVALS, PLACE_QUERIES, PLACE_K = 3, 2_000, 20


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
        places = np.where(listed.share == NO_SHARE, NO_PLACE, listed.share)
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
    for title, places, theirs in place_tables():
        ours = np.random.default_rng(0).permutation(places)[:PLACE_QUERIES]
        exact, _ = topk(ours, theirs, metric="great-circle", k=PLACE_K)
        print(f"{title}: {len(ours):,} x {len(theirs):,} places, recall@{PLACE_K} of the exact neighbours")
        tables = [{"lat": of[:, 0], "lon": of[:, 1]} for of in (theirs, ours)]
        for metres in (25, 50, 100, 200):
            for cap, reach in ((16, 2), (64, 1), (64, 2)):
                levels = int(np.ceil(np.log2(51_200 / metres)))
                kind = PlaceTokens(metres=metres, levels=levels, cap=cap, reach=reach)
                schema = TokenSchema((TokenField(("lat", "lon"), kind),))
                pairs, links, _ = plain_links(schema, *tables, PLACE_K)
                queries = schema.query_tokens(tables[1])[0].tokens.token
                shared = [
                    len(set(own) & set(near)) for own, near in zip(links.partner.tolist(), exact.tolist(), strict=True)
                ]
                counts = f"{len(np.unique(queries)):,} tokens, {len(pairs.row) / len(ours):.0f} rows reached per record"
                print(
                    f"  {metres:3d} m, cap {cap:3d}, reach {reach}: {np.mean(shared) / PLACE_K:.3f}; {counts}",
                    flush=True,
                )


def measure_cost(n: int) -> None:
    """Link n x n generated firms with all work of both sides, and print what every step costs."""
    drawn = generate_firms(np.random.default_rng(0), ours=n, theirs=n)
    ours, theirs = {"name": drawn.ours["name"].to_list()}, {"name": drawn.theirs["name"].to_list()}
    schema, key = TokenSchema((TokenField(("name",), TextTokens()),)), oprf.SecretKey.generate()
    print(f"{n:,} x {n:,} names, 8 values per row; seconds and CPU seconds of all cores")
    spent, asked = [0.0, 0.0], [0]

    def step(name: str, start: tuple[float, float], note: str = "") -> None:
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        spent[0], spent[1] = spent[0] + wall, spent[1] + cpu
        print(f"  {name:34s} {wall:7.1f} {cpu:7.1f}  {note}", flush=True)

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    evaluation = [0.0, 0.0]

    def ask(blinded: list[bytes]) -> list[oprf.Evaluation]:
        start = now()
        answer = oprf.map_batches(key.evaluate_blinded, blinded)
        evaluation[0], evaluation[1] = evaluation[0] + now()[0] - start[0], evaluation[1] + now()[1] - start[1]
        asked[0] += len(blinded)
        return answer

    with tempfile.TemporaryDirectory() as folder:
        start = now()
        table = build_table(schema, theirs, np.zeros((n, 8), np.float32), key)
        step("secondary: table", start, f"{len(table.tags[0]):,} entries")
        start = now()
        table.save(Path(folder) / "table")
        size = (Path(folder) / "table").stat().st_size / 1e6
        table = EncryptedTable.load(Path(folder) / "table", schema)
        step("table written and read", start, f"{size:.1f} MB, {1000 * size / n:.1f} KB per row")
        values, start = TokenValues(schema, key.public), now()
        evaluate_tokens(schema, schema.query_tokens(ours), key.public, values, ask)
        step("both: evaluation", start, f"{asked[0]:,} tokens, {64 * asked[0] / 1e6:.1f} MB both ways")
        rates = [asked[0] / (seconds + 1e-9) for seconds in evaluation]
        print(f"    secondary: {evaluation[0]:.1f} s, {evaluation[1]:.1f} CPU s, {rates[1]:,.0f} tokens per CPU s")
        start = now()
        found = open_rows(table, schema.query_tokens(ours), values, ask)
        found.pairs.best(10, found.pairs.fit_rivals(np.ones(n, np.bool_)), found.among)
        step("primary: opening and links", start, f"{len(found.rows):,} rows opened")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"  {'all work of both sides':34s} {spent[0]:7.1f} {spent[1]:7.1f}  {size + 64 * asked[0] / 1e6:.1f} MB in all"
    )
    print(f"  peak memory {memory:,.0f} MB; {1000 * spent[1] / n:.1f} CPU ms per pair of records", flush=True)
    for records in (10_000, 200_000, 1_000_000):
        hours, megabytes = spent[1] * records / n / 2 / 3600, (size + 64 * asked[0] / 1e6) * records / n
        print(f"  {records:,} x {records:,}: {hours:.2f} h on two idle cores, {megabytes:,.0f} MB (linear)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quality", action="store_true", help="measure recall only")
    parser.add_argument("--cost", type=int, metavar="N", help="link N x N names only")
    chosen = parser.parse_args()
    if chosen.cost is None:
        measure_names()
        measure_places()
    if not chosen.quality:
        measure_cost(chosen.cost or 2_000)


if __name__ == "__main__":
    main()
