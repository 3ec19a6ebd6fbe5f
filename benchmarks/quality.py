"""Linkage quality: how often and at what rank every text metric and encoding finds the true match, compared with peers.

``fedsim lab bench quality`` prints the tables of ``docs/linkage-quality.md``; after two dashes, ``--picture FILE`` also
draws the first one. Peers that are not among the project's requirements (``clkhash``, which encodes for anonlink) are
skipped if they are not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from rapidfuzz import fuzz
from rapidfuzz.process import cdist
from sklearn.feature_extraction.text import TfidfVectorizer

from fedsim.linkage import topk
from fedsim.linkage.encoding import (
    FieldEncoding,
    Key,
    NumericFilter,
    PlacePosition,
    Schema,
    SchemaField,
    StringFilter,
    normalise_text,
)
from fedsim.linkage.words import WordRules
from fedsim.privacy.geodesy import EARTH_RADIUS, on_unit_sphere
from fedsim.report import svg
from fedsim.report.charts import LINE_CLASSES
from fedsim.report.page import Figure
from fedsim.types import Bits, Floats, Integers
from fedsim_lab.linkage_ranks import match_ranks, ranks_in_rows, summarise_ranks
from fedsim_lab.reproduce_page import standalone_svg
from quality_data import TextPair, dense_places, febrl_folder, febrl_tables, join_columns, text_sets, trips

K, SIGMA = 50, 0.2
RAPIDFUZZ_QUERIES = 300  # per draw; it compares pair by pair
PLACE_QUERIES, PLACE_K = 2_000, 20
KEY = Key(bytes(range(32)))
DEFAULT, SCIKIT_LEARN = "words, Dice (default)", "scikit-learn TF-IDF, 3-grams of words"
DRAWN = (DEFAULT, "text, Dice", "qgram-dice", "levenshtein-normalised", SCIKIT_LEARN, "clkhash, Dice (anonlink)")

Ranks = tuple[Integers, Integers | None]  # without noise, and with noise where a coordinator would add it


@dataclass(frozen=True)
class Method:
    """A way to link texts: ``rank`` returns the ranks of the true matches of the queries that have one."""

    kind: str
    name: str
    rank: Callable[[TextPair], Ranks]


def methods() -> list[Method]:
    """Return every text metric and encoding, and the peers that are installed."""
    found = [
        Method("plain", "levenshtein-normalised", lambda pair: _plain(_fold(pair), "levenshtein-normalised")),
        Method("plain", "qgram-dice", lambda pair: _plain(pair, "qgram-dice")),
    ]
    for name, encoding, metric in (
        (DEFAULT, StringFilter(), "dice"),
        ("text, Hamming", StringFilter(), "hamming"),
    ):
        found.append(Method("encoded", name, lambda pair, e=encoding, m=metric: _encoded(pair, e, m)))
    found.append(
        Method("encoded", "text, as peers get it, Dice", lambda pair: _encoded(_fold(pair), StringFilter(), "dice"))
    )
    if importlib.util.find_spec("clkhash"):
        found.append(Method("encoded", DRAWN[-1], _clkhash))
    else:
        print("clkhash (anonlink): skipped, not installed")
    return [
        *found,
        Method("peer", SCIKIT_LEARN, lambda pair: _dense(_fold(pair), _tfidf_distances)),
        Method("peer", "rapidfuzz token_set_ratio", lambda pair: _rapidfuzz(pair, fuzz.token_set_ratio)),
        Method("peer", "rapidfuzz WRatio", lambda pair: _rapidfuzz(pair, fuzz.WRatio)),
    ]


def _fold(pair: TextPair) -> TextPair:
    """Return words without case, accents and punctuation, as our own metrics do, for methods without such rules."""
    ours, theirs = (
        [" ".join(words) or normalise_text(text) for words, text in zip(WordRules().split_all(side), side, strict=True)]
        for side in (pair.ours, pair.theirs)
    )
    return TextPair(ours, theirs, pair.truth)


def _plain(pair: TextPair, metric: str) -> Ranks:
    known = np.flatnonzero(pair.truth >= 0)
    queries = [pair.ours[row] for row in known]
    return match_ranks(queries, pair.theirs, pair.truth[known], metric, k=K, sigma=SIGMA, rng=np.random.default_rng(0))


def _encoded(pair: TextPair, encoding: FieldEncoding, metric: str) -> Ranks:
    schema = Schema([SchemaField("name", encoding)])
    ours, theirs = (schema.encode({"name": side}, KEY).bits for side in (pair.ours, pair.theirs))
    return _filters(ours, theirs, pair.truth, metric)


def _filters(ours: Bits, theirs: Bits, truth: Integers, metric: str) -> Ranks:
    known = truth >= 0
    return match_ranks(ours[known], theirs, truth[known], metric, k=K, sigma=SIGMA, rng=np.random.default_rng(0))


def _clkhash(pair: TextPair) -> Ranks:
    """Rank by clkhash filters with the settings of its own example for names: bigrams, 15 bits each, 1,024 bits."""
    from clkhash import clk, randomnames, schema  # noqa: PLC0415 - not among the requirements

    example = randomnames.NameList.SCHEMA
    names = schema.Schema(
        [field for field in example.fields if field.identifier == "NAME freetext"],
        example.l,
        kdf_salt=example.kdf_salt,
        kdf_info=example.kdf_info,
    )
    folded = _fold(pair)
    ours, theirs = (
        np.array(
            [
                list(row.tobytes())
                for row in clk.generate_clks([[text] for text in side], names, "secret", False, max_workers=1)
            ],
            np.uint8,
        )
        for side in (folded.ours, folded.theirs)
    )
    return _filters(ours, theirs, pair.truth, "dice")


def _dense(pair: TextPair, distances: Callable[[list[str], list[str]], Iterator[Floats]]) -> Ranks:
    """Rank by blocks of distances to all candidates, in the order of the queries."""
    known = np.flatnonzero(pair.truth >= 0)
    ranks, done = [], 0
    for block in distances([pair.ours[row] for row in known], pair.theirs):
        ranks.append(ranks_in_rows(block, pair.truth[known[done : done + len(block)]]))
        done += len(block)
    return np.concatenate(ranks), None


def _tfidf_distances(ours: list[str], theirs: list[str]) -> Iterator[Floats]:
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3)).fit([*ours, *theirs])
    queries, candidates = vectors.transform(ours), vectors.transform(theirs).T.tocsr()
    for first in range(0, len(ours), 250):
        yield -(queries[first : first + 250] @ candidates).toarray()


def _rapidfuzz(pair: TextPair, scorer: Callable[..., float]) -> Ranks:
    known = np.flatnonzero(pair.truth >= 0)[:RAPIDFUZZ_QUERIES]
    truth = np.full(len(pair.truth), -1)
    truth[known] = pair.truth[known]

    def distances(ours: list[str], theirs: list[str]) -> Iterator[Floats]:
        for first in range(0, len(ours), 50):
            yield -cdist(ours[first : first + 50], theirs, scorer=scorer, workers=-1, dtype=np.float32)

    return _dense(_fold(TextPair(pair.ours, pair.theirs, truth)), distances)


def text_tables(sets: dict[str, list[TextPair]]) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Return the lines of a short and a full table, and recall@1 by method and set."""
    overview = [f"| recall@1 / @10 | {' | '.join(sets)} |", f"|---|{'---|' * len(sets)}"]
    full = [
        f"| set | kind | method | recall@1 | @5 | @10 | @50 | mean rank | @1, sigma {SIGMA} | @10, sigma {SIGMA} |",
        f"|{'---|' * 10}",
    ]
    rows: dict[str, list[str]] = {name: [] for name in sets}
    first: dict[str, dict[str, float]] = {}
    for method in methods():
        cells, start = [], time.perf_counter()
        for name, draws in sets.items():
            ranks = [method.rank(pair) for pair in draws]
            plain = summarise_ranks(np.concatenate([one for one, _ in ranks]))
            shown = [noisy for _, noisy in ranks if noisy is not None]
            noise = summarise_ranks(np.concatenate(shown)).recall if shown else None
            recall = [f"{plain.recall[depth]:.3f}" for depth in (1, 5, 10, 50)]
            noisy_cells = [f"{noise[depth]:.3f}" if noise else "" for depth in (1, 10)]
            cells.append(f"{plain.recall[1]:.3f} / {plain.recall[10]:.3f}")
            rows[name].append(
                f"| {' | '.join([name, method.kind, method.name, *recall, f'{plain.mean_rank:,.1f}', *noisy_cells])} |"
            )
            first.setdefault(method.name, {})[name] = plain.recall[1]
        overview.append(f"| {method.kind}: {method.name} | {' | '.join(cells)} |")
        print(f"{overview[-1]} {time.perf_counter() - start:.0f} s", flush=True)
    return [*overview, "", *full, *(row for name in sets for row in rows[name])], first


def record_table() -> list[str]:
    """Return the table of Febrl 4, linked by several fields."""
    folder = febrl_folder()
    if folder is None:
        return []
    ours, theirs, truth = febrl_tables(folder)
    parts = {
        "name": (["given_name", "surname"], StringFilter()),
        "address": (["street_number", "address_1", "suburb", "postcode"], StringFilter()),
        "born": (["date_of_birth"], StringFilter(bits=512)),
    }
    lines = ["| Febrl 4, fields, encoded, Dice | recall@1 | @5 | @10 | @50 | mean rank |", f"|{'---|' * 6}"]
    for names in (("name",), ("name", "born"), ("name", "address"), ("name", "address", "born")):
        schema = Schema([SchemaField(name, parts[name][1]) for name in names])
        tables = (
            schema.encode(pl.DataFrame({name: join_columns(table, parts[name][0]) for name in names}), KEY).bits
            for table in (ours, theirs)
        )
        found = summarise_ranks(_filters(*tables, truth, "dice")[0])
        recall = " | ".join(f"{share:.3f}" for share in found.recall.values())
        lines.append(f"| {', '.join(names)} | {recall} | {found.mean_rank:.1f} |")
    return lines


def place_table() -> list[str]:
    """Return the recall of encoded places, compared with the true nearest places, for a sample of the primary's."""
    lines = [f"| places | encoding | recall@1 | recall@{PLACE_K} |", "|---|---|---|---|"]
    rng = np.random.default_rng(0)
    pairs = {"200,000 x 100,000 dense places": dense_places(rng), "bike x taxi trips, 4-D": trips()}
    for name, pair in pairs.items():
        if pair is None:
            print(f"{name}: skipped, no data")
            continue
        ours, theirs = pair
        sample = np.sort(rng.permutation(len(ours))[:PLACE_QUERIES])
        plain, distance = topk(_points(ours[sample]), _points(theirs), metric="euclidean", k=PLACE_K)
        for words, schema in _place_schemas(ours, theirs, float(np.median(distance[:, -1]))).items():
            columns = [f"c{axis}" for axis in range(ours.shape[1])]
            tables = [schema.encode(pl.DataFrame(side, schema=columns), KEY) for side in (ours[sample], theirs)]
            found, _ = topk(*tables, metric=schema.metric or "hamming", k=PLACE_K)
            hits = (found[:, :, np.newaxis] == plain[:, np.newaxis, :]).any(axis=2).mean()
            lines.append(f"| {name} | {words} | {(found[:, 0] == plain[:, 0]).mean():.4f} | {hits:.4f} |")
            print(lines[-1], flush=True)
    return lines


def _points(places: Floats) -> Floats:
    return EARTH_RADIUS * np.hstack(
        [on_unit_sphere(np.radians(place)) for place in np.hsplit(places, places.shape[1] // 2)]
    )


def _place_schemas(ours: Floats, theirs: Floats, kth: float) -> dict[str, Schema]:
    """Return positions, and numeric filters with three times the distance to the last partner as threshold."""
    places = range(0, ours.shape[1], 2)
    both = np.vstack([ours, theirs])
    metres = np.array([np.pi / 180 * EARTH_RADIUS, np.pi / 180 * EARTH_RADIUS * np.cos(np.radians(both[:, 0].mean()))])
    ends = list(zip(both.min(axis=0).tolist(), both.max(axis=0).tolist(), strict=True))
    filters = [
        SchemaField(f"c{axis}", NumericFilter(low, high, threshold=3 * kth / float(metres[axis % 2])))
        for axis, (low, high) in enumerate(ends)
    ]
    positions = [SchemaField(f"c{axis}", PlacePosition(), longitude=f"c{axis + 1}") for axis in places]
    return {"positions, 1 m": Schema(positions), "numeric filters, 1,024 bits per coordinate": Schema(filters)}


def draw_recall(first: dict[str, dict[str, float]]) -> Figure:
    """Draw recall@1: one row per set, one dot per method."""
    chosen = [name for name in DRAWN if name in first]
    sets = list(first[chosen[0]])
    lowest = min(value for name in chosen for value in first[name].values())
    x = svg.LinearScale(svg.nice_range(lowest, 1.0)[0], 1.0, 110, svg.RIGHT)
    top, bottom = 18 * len(chosen) + 12, 18 * len(chosen) + 16 + 30 * len(sets)
    parts = []
    for number, name in enumerate(chosen):
        parts.append(svg.dot(116, 12 + 18 * number, 5, class_=f"dot {LINE_CLASSES[number]}"))
        parts.append(svg.text(name, 128, 16 + 18 * number, "name"))
    for value, label in svg.tick_labels(x.low, x.high).items():
        parts.append(svg.path([(x(value), top), (x(value), bottom)], class_="grid"))
        parts.append(svg.text(label, x(value), bottom + 15, anchor="middle"))
    for row, name in enumerate(sets):
        middle = top + 20 + 30 * row
        parts.append(svg.path([(x.start, middle), (x.end, middle)], class_="grid"))
        parts.append(svg.text(name, 4, middle + 4, "name"))
        for number, method in reversed(list(enumerate(chosen))):
            value = first[method][name]
            parts.append(svg.dot(x(value), middle, 5, f"{method}: {value:.3f}", f"dot {LINE_CLASSES[number]}"))
    parts.append(svg.text("recall@1", (x.start + x.end) / 2, bottom + 33, "axis-title", "middle"))
    title = "Share of true matches that are listed first"
    words = "; ".join(f"{name}: {method} {first[method][name]:.2f}" for name in sets for method in chosen)
    rows = tuple((name, *(f"{first[method][name]:.3f}" for method in chosen)) for name in sets)
    return Figure(title, "", svg.image(title, words, parts, bottom + 42), ("set", *chosen), rows)


def main(words: Sequence[str] | None) -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser("fedsim lab bench quality --")
    parser.add_argument("--picture", type=Path, help="SVG file for the picture of recall@1")
    parser.add_argument("--sets", nargs="+", help="names of sets of texts; default: all, and places")
    asked = parser.parse_args(words or ())
    sets = {name: draws for name, draws in text_sets().items() if not asked.sets or name in asked.sets}
    lines, first = text_tables(sets)
    print("", *lines, sep="\n")
    if not asked.sets:
        print("", *record_table(), "", *place_table(), sep="\n")
    if asked.picture:
        asked.picture.write_text(standalone_svg(draw_recall(first)), encoding="utf-8")
