"""Measure the cost of communication: a tensor's round trip, processes, bytes, half precision, GPUs, many secondaries.

Run it with ``fedsim lab bench wire``. Alternatives are measured in turn, in the same run on the same machine. Ratios
are computed per turn, and their median is shown, because other work on the machine slows down single turns. Training
times are the best of all turns.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import grpc
import numpy as np
import torch

from fedsim.errors import SettingError
from fedsim.registry import PRESETS
from wire_data import DATA, Terms, have_hdb, write_hdb
from wire_echo import Array, RoundTrip, both_ways, relayed
from wire_runs import Trained, run

RELAY_SHAPES = {"1 KB": ((1, 256), 100), "256 KB": ((640, 100), 40), "2.56 MB": ((128 * 50, 100), 20)}
RELAY_SHAPES |= {"33.6 MB": ((8192, 1024), 3)}
SHAPES = {"2.56 MB": ((128 * 50, 100), 20), "1 KB": ((1, 256), 200)}  # and how many round trips make a turn
TURNS, TRAINING_TURNS = 15, 5
WAYS = ("grpc", "queues", "arrays")
PRECISION = Terms("modern", epochs=8)
PARTNERS = (1, 4, 10)
FORMS, SEEDS = ("float32", "float16", "bfloat16", "int8"), (0, 1)


def tensor() -> Iterator[str]:
    """Measure round trips of one array over our session and over a bare stream."""
    yield "| array | ours ms, median (best) | bare gRPC stream ms, median (best) | ratio | target |"
    yield "|---|---|---|---|---|"
    with TemporaryDirectory() as folder, both_ways(Path(folder)) as trips:
        for name, (shape, count) in SHAPES.items():
            values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            turns = trip_turns(trips, values, count)
            ours, bare = ([1000 * second for turn in turns for second in turn[way]] for way in ("session", "bare"))
            ratio = median_ratio([(median(turn["session"]), median(turn["bare"])) for turn in turns])
            target = "<= 1.3" if name == "2.56 MB" else ""
            yield f"| {name} | {_middle(ours)} | {_middle(bare)} | {ratio:.2f} | {target} |"


def relay() -> Iterator[str]:
    """Measure round trips of one array between two processes, directly and through a relay in a third."""
    yield "| array | direct ms, median (best) | relay ms, median (best) | ratio | direct MB/s | relay MB/s | target |"
    yield "|---|---|---|---|---|---|---|"
    with TemporaryDirectory() as folder, relayed(Path(folder)) as trips:
        for name, (shape, count) in RELAY_SHAPES.items():
            values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            turns = trip_turns(trips, values, count)
            times = {way: [1000 * second for turn in turns for second in turn[way]] for way in trips}
            ratio = median_ratio([(median(turn["relay"]), median(turn["direct"])) for turn in turns])
            rates = " | ".join(f"{2 * values.nbytes / 1000 / median(found):,.0f}" for found in times.values())
            yield f"| {name} | {' | '.join(map(_middle, times.values()))} | {ratio:.2f} | {rates} | <= 1.5 |"


def trip_turns(trips: dict[str, RoundTrip], values: Array, count: int) -> list[dict[str, list[float]]]:
    """Return the seconds of single round trips, for all alternatives in every turn, without the warm-up turn."""
    for trip in trips.values():
        np.testing.assert_array_equal(trip(values), values)
    turns = [
        {way: [_seconds(trip, values) for _ in range(count)] for way, trip in trips.items()} for _ in range(TURNS + 1)
    ]
    return turns[1:]


def _seconds(trip: RoundTrip, values: Array) -> float:
    start = time.perf_counter()
    trip(values)
    return time.perf_counter() - start


def _middle(figures: list[float]) -> str:
    return f"{median(figures):.2f} ({min(figures):.2f})"


def training() -> Iterator[str]:
    """Measure the time and bytes of an epoch of hdb over gRPC, through queues and on plain arrays."""
    yield "| preset | gRPC s | queues s | arrays s | gRPC / queues | gRPC / arrays | MB per epoch | K rows MB | less |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for preset in ("paper", "modern"):
        turns = [training_turn(Terms(preset, epochs=1, seed=turn), turn) for turn in range(TRAINING_TURNS)]
        seconds = {way: [sum(turn[way].seconds) for turn in turns] for way in WAYS}
        beside = {way: median_ratio(list(zip(seconds["grpc"], seconds[way], strict=True))) for way in WAYS}
        sent = median(turn["grpc"].training_bytes for turn in turns)
        whole = rows_per_record(turns[0]["arrays"].pairs, PRESETS[preset].local.cut)
        times = " | ".join(f"{min(seconds[way]):.1f}" for way in WAYS)
        ratios = f"{beside['queues']:.2f} | {beside['arrays']:.2f}"
        yield f"| {preset} | {times} | {ratios} | {sent / 1e6:.1f} | {whole / 1e6:,.0f} | {whole / sent:.0f} |"
    yield "\ntargets: gRPC / queues at most 1.5, at least 15 times less than K rows per record"


def training_turn(terms: Terms, turn: int) -> dict[str, Trained]:
    """Run every alternative once, in an order that changes by turn; those with messages must end with equal metrics."""
    with TemporaryDirectory() as name:
        apart, together = (write_hdb(Path(name) / folder, terms) for folder in ("apart", "together"))
        pairs = [("grpc", apart), ("queues", together)]
        found = {way: run(way, hdb) for way, hdb in (pairs if turn % 2 else reversed(pairs))}
        found["arrays"] = run("arrays", together)  # on the links of the run before
    assert found["grpc"].test == found["queues"].test  # on arrays the secondary has no secret, and other first weights
    return found


def rows_per_record(pairs: int, width: int) -> int:
    """Return the bytes of an epoch that sends an activation and a gradient row for every pair of record and partner."""
    return 2 * 4 * pairs * width


def gpu() -> Iterator[str]:
    """Measure epochs over gRPC with mutual TLS: the primary on a GPU, the secondary on the CPU."""
    yield "| preset | s per epoch | MB per epoch | test RMSE after two epochs |\n|---|---|---|---|"
    for preset in ("paper", "modern"):
        found = over_grpc(Terms(preset, epochs=2, device="cuda"))
        yield f"| {preset} | {found.seconds[-1]:.1f} | {found.training_bytes / 2e6:.1f} | {found.test['rmse']:.2f} |"


def partners() -> Iterator[str]:
    """Measure an epoch over gRPC by the number of secondaries, with the primary on a GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    yield "| secondaries | s per epoch | per secondary | MB per epoch | per secondary |\n|---|---|---|---|---|"
    for count in PARTNERS:
        found = over_grpc(Terms("modern", epochs=2, device=device, secondaries=count))
        seconds, sent = found.seconds[-1], found.training_bytes / 2e6
        yield f"| {count} | {seconds:.1f} | {seconds / count:.2f} | {sent:.1f} | {sent / count:.1f} |"


def over_grpc(terms: Terms) -> Trained:
    with TemporaryDirectory() as name:
        return run("grpc", write_hdb(Path(name) / "apart", terms))


def precision() -> Iterator[str]:
    """Measure the test error and bytes with half precision on the wire."""
    yield f"| wire | {' | '.join(f'test RMSE, seed {seed}' for seed in SEEDS)} | mean change | MB per epoch |"
    yield f"|---|{'---|' * len(SEEDS)}---|---|"
    exact: list[float] = []
    for form in FORMS:
        runs = [precision_run(Terms(PRECISION.preset, PRECISION.epochs, form, seed)) for seed in SEEDS]
        errors = [found.test["rmse"] for found in runs]
        exact = exact or errors
        change = sum(errors) / sum(exact) - 1
        sent = median(found.training_bytes for found in runs) / PRECISION.epochs / 1e6
        yield f"| {form} | {' | '.join(f'{error:.3f}' for error in errors)} | {change:+.2%} | {sent:.1f} |"


def precision_run(terms: Terms) -> Trained:
    with TemporaryDirectory() as name:
        return run("queues", write_hdb(Path(name) / "together", terms))


def median_ratio(turns: list[tuple[float, float]]) -> float:
    """Return the median over turns of our time divided by the other's."""
    return median(ours / other for ours, other in turns)


CASES: dict[str, Callable[[], Iterator[str]]] = {
    "tensor": tensor,
    "relay": relay,
    "training": training,
    "precision": precision,
    "gpu": gpu,
    "partners": partners,
}


@contextmanager
def announced(case: str) -> Iterator[None]:
    """Print a heading before a case, and the load of the machine after it."""
    print(f"\n### {case}\n", flush=True)
    yield
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}", flush=True)


def main(cases: list[str] | None = None) -> None:
    """Print the tables of the chosen cases."""
    for case in cases or ():
        if case not in CASES:
            raise SettingError(f"there is no case '{case}' of the wire benchmark; choose from {', '.join(CASES)}")
    print(f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, gRPC {grpc.__version__}")
    for case in cases or CASES:
        if case == "gpu" and not torch.cuda.is_available():
            print(f"\n{case}: skipped, there is no CUDA device")
            continue
        if case not in ("tensor", "relay") and not have_hdb():
            print(f"\n{case}: skipped, there is no hdb in {DATA}; set FEDSIM_DATA to the folder of the real data")
            continue
        with announced(case):
            for line in CASES[case]():
                print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
