"""Speed of the linkage engine: ratios to named peers in the same process, and the paper's whole jobs with their memory.

Run it with ``fedsim lab bench linkage``. Ratios are CPU seconds of one thread, best of two; whole jobs use all cores.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist
from scipy.spatial import cKDTree

from fedsim.linkage import topk
from fedsim.linkage.encoding import Key, NumericFilter, Schema, SchemaField, StringFilter
from fedsim_lab.paper_filters import paper_numeric_filter
from fedsim_lab.rank_filters import schema_ranks
from linkage_data import beijing, catalogue, city, real, steam_titles, variants

K = 50
KEY = Key(bytes(range(32)))


def cpu_seconds(work: Callable[[], Any], repeats: int = 2) -> float:
    """Return the best CPU time of a few runs, after a warm-up run."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def versus(ours: Callable[[], Any], peer: Callable[[], Any], pairs: int) -> dict[str, float]:
    """Return the million pairs per second of both, and how many times faster ours is."""
    own_time, peer_time = cpu_seconds(ours), cpu_seconds(peer)
    return {"mpairs": pairs / own_time / 1e6, "peer_mpairs": pairs / peer_time / 1e6, "ratio": peer_time / own_time}


def levenshtein() -> dict[str, Any]:
    queries, candidates = steam_titles()[::6][:4096], catalogue(110_000)

    def peer() -> None:
        for first in range(0, len(queries), 64):
            block = cdist(
                queries[first : first + 64], candidates, scorer=Levenshtein.distance, dtype=np.uint8, workers=1
            )
            np.partition(block, K - 1, axis=1)[:, :K]

    def ours() -> None:
        topk(queries, candidates, metric="levenshtein", k=K, threads=1)

    return {"peer": "rapidfuzz cdist + partition", **versus(ours, peer, len(queries) * len(candidates))}


def hamming_titles() -> dict[str, Any]:
    schema = Schema(fields=(SchemaField("title", StringFilter(q=2, hashes=20, bits=1024)),))
    queries = schema.encode({"title": steam_titles()[::13][:2048]}, KEY).bits
    candidates = schema.encode({"title": catalogue(220_000)}, KEY).bits
    return _against_faiss(queries, candidates, "flat")


def hamming_places() -> dict[str, Any]:
    queries, candidates = (_place_filters(places) for places in beijing(4096))
    return _against_faiss(queries, candidates, "flat")


def hamming_places_planned() -> dict[str, Any]:
    queries, candidates = (_place_filters(places) for places in beijing(141_050))
    return _against_faiss(queries, candidates, "auto")


def _place_filters(places: np.ndarray) -> np.ndarray:
    fields = tuple(
        SchemaField(name, NumericFilter(low=low, high=high, threshold=0.1, bits=512))
        for name, low, high in (("lat", 39.4, 41.0), ("lon", 115.4, 117.6))
    )
    return Schema(fields=fields).encode({"lat": places[:, 0], "lon": places[:, 1]}, KEY).bits


def _against_faiss(queries: np.ndarray, candidates: np.ndarray, backend: str) -> dict[str, Any]:
    faiss.omp_set_num_threads(1)
    index = faiss.IndexBinaryFlat(8 * candidates.shape[1])
    index.add(candidates)
    queries = np.unique(queries, axis=0)  # ours would search equal queries once

    def ours() -> None:
        topk(queries, candidates, metric="hamming", k=K, threads=1, backend=backend)

    figures = versus(ours, lambda: index.search(queries, K), len(queries) * len(candidates))
    return {"peer": "faiss IndexBinaryFlat", **figures}


def euclid() -> dict[str, Any]:
    homes, listings = beijing()

    def ours() -> None:
        topk(homes, listings, metric="euclidean", k=K, threads=1)

    figures = versus(ours, lambda: cKDTree(listings).query(homes, k=K), len(homes) * len(listings))
    return {"peer": "bare scipy cKDTree", **figures}


def house_ranks() -> dict[str, Any]:
    """Run the paper's house job with its own parameters (t=.01, epsilon=delta=.03), in rank form."""
    homes, listings = beijing()
    both = np.vstack([homes, listings])
    fields = tuple(
        SchemaField(name, paper_numeric_filter(float(low), float(high), 0.01, epsilon=0.03, delta=0.03))
        for name, low, high in zip(("lat", "lon"), both.min(axis=0), both.max(axis=0), strict=True)
    )
    schema = Schema(fields=fields)
    start = time.process_time()
    ranks = [
        schema_ranks(schema, {"lat": places[:, 0], "lon": places[:, 1]}, KEY, table)
        for places, table in ((homes, "primary"), (listings, "secondary"))
    ]
    topk(*ranks, metric="rank-hamming", k=100)
    return {"bits": schema.n_bits, "core_seconds": time.process_time() - start, "pairs": len(homes) * len(listings)}


def game() -> dict[str, Any]:
    queries, candidates = steam_titles(), catalogue()
    figures = _whole(lambda: topk(queries, candidates, metric="levenshtein-normalised", k=K))
    return {**figures, "pairs": len(queries) * len(candidates)}


def qgrams() -> dict[str, Any]:
    queries, candidates = variants(steam_titles(), 30_000, np.random.default_rng(3)), catalogue(440_000)
    topk(queries[:50], candidates[:500], metric="qgram-dice", k=K)  # compiles
    figures = _whole(lambda: topk(queries, candidates, metric="qgram-dice", k=K))
    return {**figures, "pairs": len(queries) * len(candidates)}


def million() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    queries, candidates = city(1_000_000, rng), city(1_000_000, rng)
    return {**_whole(lambda: topk(queries, candidates, metric="great-circle", k=K)), "pairs": 10**12}


def _whole(work: Callable[[], Any]) -> dict[str, float]:
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - start, "core_seconds": time.process_time() - cpu}


CASES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "levenshtein": (levenshtein, "Levenshtein, 4,096 real titles x 110,000"),
    "hamming-titles": (hamming_titles, "Hamming-1024, 2,048 titles x 220,000, popcount of every pair"),
    "hamming-places": (hamming_places, "Hamming-1024, 4,096 places x 27,827, popcount of every pair"),
    "hamming-places-planned": (hamming_places_planned, "Hamming-1024, 141,050 places x 27,827, as planned (cells)"),
    "euclid": (euclid, "Euclid, 141,050 x 27,827 places"),
    "house": (house_ranks, "house, 141,050 x 27,827, K=100, the paper's filters in rank form"),
    "game": (game, "game, 26,987 x 439,999 titles, exhaustive, normalised"),
    "qgrams": (qgrams, "weighted q-gram Dice, 30,000 x 440,000 titles"),
    "million": (million, "1,000,000 x 1,000,000 places, great circle"),
}


def measure(case: str) -> dict[str, Any]:
    """Run one case in a separate process, to measure its own peak memory."""
    done = subprocess.run([sys.executable, __file__, case], check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


def line(case: str, figures: dict[str, Any]) -> str:
    """Return one row of the table."""
    if "ratio" in figures:
        what = f"{figures['ratio']:.2f} x {figures['peer']}"
        speed = f"{figures['mpairs']:,.0f} against {figures['peer_mpairs']:,.0f} Mpairs/s per core"
    else:
        seconds = f"{figures['seconds']:.0f} s, " if "seconds" in figures else ""
        what = f"{seconds}{figures['core_seconds']:.1f} core-seconds"
        speed = f"{figures['pairs'] / figures['core_seconds'] / 1e6:,.0f} Mpairs/s per core"
    return f"| {CASES[case][1]} | {what} | {speed} | {figures['peak_gib']:.2f} GiB |"


def main(cases: list[str] | None = None) -> None:
    """Print the table of the chosen cases."""
    source = "real places and titles, enlarged" if real() else "generated places and titles (no real data found)"
    print(f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}; {source}\n")
    print("| job | result | speed | peak memory |\n|---|---|---|---|")
    for case in cases or CASES:
        print(line(case, measure(case)), flush=True)


if __name__ == "__main__":
    figures = CASES[sys.argv[1]][0]()
    figures["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(figures))
