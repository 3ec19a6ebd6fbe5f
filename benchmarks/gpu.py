"""Measure exact searches and training on one CUDA device; searches are compared with floors, version 0.1 and ``topk``.

Run it with ``fedsim lab bench gpu``, or with ``python benchmarks/gpu.py`` where only torch and NumPy are installed
(without the case ``planner``, which needs numba). A floor is the larger of bytes divided by
bandwidth and operations divided by rate, both measured in the same run. Titles are read from the file named by
``FEDSIM_TITLES``, which ``python benchmarks/gpu.py titles FILE`` writes.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedsim.splitnn.secondary_model import LocalSecondary
from fedsim.training import Config, PrimaryData, SecondaryData, TaskType, train
from fedsim.training.loop import prepare_job, start_local_secondaries, training_settings
from fedsim.training.primary_steps import BatchRequest, tensor_float32
from fedsim.types import Split
from fedsim_lab.paper_sizes import PAPER_DATA, PaperData
from fedsim_ops import gpu_search as gpu, nvrtc

SHAPES = {  # of the paper's jobs: primary records, secondary records, K
    "house": (141_050, 27_827, 100),
    "taxi": (200_000, 100_000, 50),
    "game": (26_987, 439_999, 50),
    "company": (77_225, 220_583, 50),
}
CHECKED_QUERIES = 64
OPERATIONS_PER_CHARACTER = 11  # of 32 bits: ten of Myers' algorithm, one load


def seconds(work: Callable[[], Any], repeats: int = 3, warm_up: int = 1) -> float:
    """Return the median time of a few runs."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


PROBE = """
struct Probe { int* out; int rounds; };
extern "C" __global__ void __launch_bounds__(512, 1) probe(Probe probe) {
    extern __shared__ char memory[];
    char* tiles = memory + (-address(memory) & 1023);
    unsigned long long a = matrix(tiles + 8192 * (threadIdx.x / 128)), b = matrix(tiles + 32768);
    int d[64];
    for (int round = 0; round < probe.rounds; round++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int part = 0; part < 4; part++) multiply_bits(d, a + 2 * part, b + 2 * part, round + part);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    int total = 0;
#pragma unroll
    for (int i = 0; i < 64; i++) total += d[i];
    probe.out[512 * blockIdx.x + threadIdx.x] = total;
}
"""


class Card:
    """The measured limits of a device, per second."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        large = torch.empty(2**30, dtype=torch.int64, device=self.device)
        self.bytes = 2 * large.nbytes / seconds(large.clone)
        self.multiprocessors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.integers = self.multiprocessors * 64 * 1.98e9  # 32-bit operations, by the data sheet
        self.doubles = self.multiprocessors * 64 * 1.98e9
        self.bits = self._bit_rate()
        square = torch.randn(8192, 8192, device=self.device)
        with tensor_float32(self.device):
            self.products = 2 * len(square) ** 3 / seconds(partial(torch.mm, square, square))

    def _bit_rate(self) -> float:
        """Measure products of bits that are already in shared memory: two operations per pair of bits."""
        if torch.cuda.get_device_capability(self.device)[0] != gpu.HOPPER:
            return 2 * 32 * self.multiprocessors * 16 * 1.98e9  # popcounts, by the data sheet
        settings = ["SLABS=1", "DICE=0", "TENSOR=1", "GROUPS=4", "STAGES=2"]
        options = ["--gpu-architecture=sm_90a", *(f"-D{setting}" for setting in settings)]
        source = Path(gpu.__file__).with_suffix(".cu").read_text() + PROBE
        module = nvrtc.Module(nvrtc.compile_source(nvrtc.load_compiler(str(torch.version.cuda)), source, options))
        out = torch.zeros(512 * self.multiprocessors, dtype=torch.int32, device=self.device)
        stream, rounds = torch.cuda.current_stream().cuda_stream, 10_000

        def run() -> None:
            grid = (self.multiprocessors, 1)
            module.launch("probe", grid, (512, 1), [(out, rounds)], shared=65_536, stream=stream)

        return 2 * 4 * 4 * 64 * 128 * 256 * rounds * self.multiprocessors / seconds(run)

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device)
        rates = f"bandwidth {self.bytes / 1e12:.2f} TB/s, bit products {self.bits / 1e15:.2f} P operations/s"
        rates += f", TF32 products {self.products / 1e12:.0f} T operations/s"
        return f"{name}, torch {torch.__version__}; {rates}"


def pack(bits: Tensor) -> np.ndarray:
    """Return bits as 64-bit words in host memory."""
    weights = torch.tensor([1 << place for place in range(8)], dtype=torch.uint8, device=bits.device)
    return (bits.view(len(bits), -1, 8) * weights).sum(2, dtype=torch.uint8).cpu().numpy().view(np.uint64)


def random_filters(n: int, bits: int, device: torch.device, seed: int) -> np.ndarray:
    """Return unstructured filters with a fifth of the bits set, as in filters of titles."""
    generator = torch.Generator(device).manual_seed(seed)
    parts = row_parts(n)
    return np.concatenate([pack(torch.rand((len(p), bits), device=device, generator=generator) < 0.2) for p in parts])


def clustered_filters(n: int, bits: int, device: torch.device, seed: int) -> np.ndarray:
    """Return variants of 2,000 filters, ordered by the original filter."""
    generator = torch.Generator(device).manual_seed(7)
    centres = torch.rand((2000, bits), device=device, generator=generator) < 0.3
    generator.manual_seed(seed)
    chosen = torch.randint(2000, (n,), device=device, generator=generator).sort().values
    rows = []
    for part in row_parts(n):
        flips = torch.rand((len(part), bits), device=device, generator=generator) < 0.08
        rows.append(pack(centres[chosen[part.start : part.stop]] ^ flips))
    return np.concatenate(rows)


def row_parts(n: int) -> list[range]:
    return [range(first, min(first + 65_536, n)) for first in range(0, n, 65_536)]


def product_seconds(queries: np.ndarray, candidates: np.ndarray, device: torch.device) -> float:
    """Return the time of the bit products alone: no pair is near enough to be listed."""
    table = gpu.FilterTable(queries, candidates, by_ones=False)
    part = table.load_candidates(0, torch.arange(len(candidates), device=device))
    tiles = []
    for rows in table.tiles():
        lists = gpu.Lists(len(rows), 1, device)
        lists.limit.fill_(-1)
        tiles.append((table.load_queries(rows, device), lists))
    return seconds(lambda: [table.search(loaded, part, 0, part.n, lists) for loaded, lists in tiles])


def search_seconds(table: Any, k: int, device: torch.device) -> tuple[float, float, float]:
    """Return the seconds of the first call, of later calls, and on the GPU alone (tables and results stay there)."""

    def call() -> tuple[np.ndarray, np.ndarray]:
        search = gpu.DeviceSearch(table, [device])
        tiles = search.tiles()
        if len(tiles) == 1 and (tiles[0][1:] > tiles[0][:-1]).all():
            return search.best(tiles[0], k)
        n = sum(map(len, tiles))
        partner, distance = np.empty((n, k), np.int64), np.empty((n, k))
        for tile in tiles:
            partner[tile], distance[tile] = search.best(tile, k)
        return partner, distance

    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    search = gpu.DeviceSearch(table, [device])
    loaded = {int(tile[0]): table.load_queries(tile, device) for tile in search.tiles()}
    load, table.load_queries = table.load_queries, lambda tile, device: loaded[int(tile[0])]
    on_card = seconds(lambda: [search.search(tile, k, device) for tile in search.tiles()])
    table.load_queries = load
    return first, seconds(call), on_card


def check(table: gpu.FilterTable | gpu.PointTable, k: int, plain_distances: Any, device: torch.device) -> bool:
    """Return whether some queries have the partners found by sorting all plain distances."""
    rows = np.random.default_rng(0).choice(len(table.queries), CHECKED_QUERIES, replace=False)
    partner, distance = gpu.DeviceSearch(table, [device]).best(rows, k)
    plain = plain_distances(table.queries[rows], table.candidates)
    order = np.argsort(plain, axis=1, kind="stable")[:, :k]
    same = (partner == order).all() and (distance == np.take_along_axis(plain, order, axis=1)).all()
    return bool(same)


def plain_filters(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    return np.array([np.bitwise_count(query ^ candidates).sum(axis=1) for query in queries], np.float64)


def plain_points(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    axes = range(queries.shape[1])
    return np.sqrt(sum(np.square(queries[:, axis, None] - candidates[None, :, axis]) for axis in axes))


# Alternatives to compare with


def unpack(words: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.unpackbits(words.view(np.uint8), axis=1)).to(device)


def torch_topk(queries: np.ndarray, candidates: np.ndarray, k: int, device: torch.device) -> Any:
    """Return the K nearest using a half-precision product and ``topk``: exact distances, arbitrary ties."""
    left, right = unpack(queries, device), unpack(candidates, device).half()
    ones = right.sum(dim=1, dtype=torch.float32)

    def run() -> None:
        for tile in left.split(4096):
            common = tile.half() @ right.T
            (ones - 2 * common.float()).topk(k, dim=1, largest=False)

    return run


def version_01(queries: np.ndarray, candidates: np.ndarray, k: int, device: torch.device) -> Any:
    """Return the K nearest as version 0.1 found them: TF32 products, ``nonzero``, sorts."""
    left, right = unpack(queries, device), unpack(candidates, device)
    left_ones, right_ones = left.float().sum(1), right.float().sum(1)

    def run() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        for rows in torch.arange(len(left), device=device).split(4096):
            partner = torch.zeros((len(rows), 0), dtype=torch.int64, device=device)
            distance = torch.zeros((len(rows), 0), dtype=torch.float64, device=device)
            first, size = 0, max(2048, k)
            while first < len(right):
                last = min(first + size, len(right))
                common = left[rows].float() @ right[first:last].float().T
                rough = (left_ones[rows][:, None] + right_ones[first:last]).sub(common, alpha=2)
                limit = distance[:, -1:].float() - 1 if partner.shape[1] == k else torch.inf
                query, place = (rough <= limit).nonzero(as_tuple=True)
                pieces = zip(query.split(2**28 // left.shape[1]), place.split(2**28 // left.shape[1]), strict=True)
                exact = torch.cat([(left[rows[a]] != right[b + first]).sum(1) for a, b in pieces]).double()
                old = torch.arange(len(rows), device=device).repeat_interleave(partner.shape[1])
                owners = torch.cat([old, query])
                everything, values = (
                    torch.cat([partner.flatten(), place + first]),
                    torch.cat([distance.flatten(), exact]),
                )
                by_value = values.sort(stable=True).indices
                order = by_value[owners[by_value].sort(stable=True).indices]
                counts = torch.bincount(owners, minlength=len(rows))
                kept = min(k, int(counts.min()))
                chosen = order[(counts.cumsum(0) - counts)[:, None] + torch.arange(kept, device=device)]
                partner, distance = everything[chosen], values[chosen]
                first, size = last, min(2 * size, 65_536)

    return run


def int8_product(queries: np.ndarray, candidates: np.ndarray, device: torch.device) -> Any:
    left, right = unpack(queries, device).to(torch.int8), unpack(candidates, device).to(torch.int8)
    right = right[: len(right) // 8 * 8]
    return lambda: [torch._int_mm(a, b.T) for a in left.split(8192) if len(a) > 16 for b in right.split(32_768)]


# The cases


def bench_filters(card: Card, bits: int, kind: str, *, compare: bool) -> None:
    make = clustered_filters if kind == "clustered" else random_filters
    for name, (m, n, k) in SHAPES.items():
        queries, candidates = make(m, bits, card.device, 1), make(n, bits, card.device, 2)
        table = gpu.FilterTable(queries, candidates, by_ones=False)
        exact = check(table, k, plain_filters, card.device)
        first, call, on_card = search_seconds(table, k, card.device)
        alone = product_seconds(queries, candidates, card.device)
        floor = max(2 * bits * m * n / card.bits, ((m + n) * bits / 8 + 12 * m * k) / card.bytes)
        others = ""
        if compare:
            dice = search_seconds(gpu.FilterTable(queries, candidates, by_ones=True), k, card.device)[2]
            gpu.HOPPER, hopper = 0, gpu.HOPPER
            popcounts = search_seconds(table, k, card.device)[2]
            gpu.HOPPER = hopper
            others = (
                f" | Dice {dice:.4f} | popcounts {popcounts:.3f}"
                f" | int8 product alone {seconds(int8_product(queries, candidates, card.device), 1):.3f}"
                f" | torch topk {seconds(torch_topk(queries, candidates, k, card.device), 1, 0):.3f}"
                f" | version 0.1 {seconds(version_01(queries, candidates, k, card.device), 1, 0):.3f}"
            )
        print(
            f"Hamming-{bits} {kind} {name} K={k}: on card {on_card:.4f} s, call {call:.3f} (first {first:.2f}) | "
            f"product alone {alone:.4f} | floor {floor:.4f}{others} | exact {exact}",
            flush=True,
        )
        torch.cuda.empty_cache()


def bench_million(card: Card) -> None:
    n, bits, k = 1_000_000, 1024, 50
    for kind, make in (("random", random_filters), ("clustered", clustered_filters)):
        queries, candidates = make(n, bits, card.device, 1), make(n, bits, card.device, 2)
        table = gpu.FilterTable(queries, candidates, by_ones=False)
        exact = check(table, k, plain_filters, card.device)
        _, call, on_card = search_seconds(table, k, card.device)
        floor = 2 * bits * n * n / card.bits
        print(
            f"Hamming-{bits} {kind} {n:,} x {n:,} K={k}: on card {on_card:.3f} s, call {call:.3f} | "
            f"floor {floor:.3f} | exact {exact}",
            flush=True,
        )


def bench_hard(card: Card) -> None:
    """Search tables on which limits do not help: all candidates tied, or each candidate nearer than the one before."""
    m, n, k = 65_536, 262_144, 50
    steps = np.linspace(1023, 0, n).astype(np.int64)[:, None] - 64 * np.arange(16)
    falling = (np.uint64(1) << np.clip(steps, 0, 63).astype(np.uint64)) - np.uint64(1)
    for name, candidates in (("equal", np.repeat(falling[:1], n, axis=0)), ("ever nearer", falling)):
        queries = falling[np.random.default_rng(0).integers(n, size=m)]
        table = gpu.FilterTable(queries, candidates, by_ones=False)
        exact = check(table, k, plain_filters, card.device)
        _, call, on_card = search_seconds(table, k, card.device)
        print(
            f"Hamming-1024 {name} {m:,} x {n:,} K={k}: on card {on_card:.4f} s, call {call:.3f} | exact {exact}",
            flush=True,
        )


def bench_points(card: Card) -> None:
    rng = np.random.default_rng(0)
    for name, (m, n, dimensions) in {
        "house": (141_050, 27_827, 2),
        "taxi": (200_000, 100_000, 4),
        "eight": (100_000, 100_000, 8),
    }.items():
        queries, candidates = rng.normal(size=(m, dimensions)), rng.normal(size=(n, dimensions))
        table = gpu.PointTable(queries, candidates)

        exact = check(table, 50, plain_points, card.device)
        first, call, on_card = search_seconds(table, 50, card.device)
        floor = 3 * dimensions * m * n / card.doubles
        left, right = (torch.from_numpy(side).to(card.device) for side in (queries, candidates))

        def topk(left: Tensor = left, right: Tensor = right) -> None:
            for tile in left.split(4096):
                torch.cdist(tile, right).topk(50, dim=1, largest=False)

        print(
            f"Euclid {name} {m:,} x {n:,}, {dimensions} dimensions: on card {on_card:.4f} s, call {call:.3f} "
            f"(first {first:.2f}) | floor {floor:.4f} | torch topk {seconds(topk, 1):.3f} | exact {exact}",
            flush=True,
        )


def read_titles() -> dict[str, Any]:
    if "FEDSIM_TITLES" in os.environ:
        with gzip.open(os.environ["FEDSIM_TITLES"], "rt", encoding="utf-8") as file:
            return dict(json.load(file))
    return make_titles()


def make_titles() -> dict[str, Any]:
    """Return the titles of the paper's game job, and what the CPU engine finds for some of them."""
    import linkage_data  # noqa: PLC0415 - needs polars
    from fedsim.linkage import topk  # noqa: PLC0415 - needs numba

    queries, candidates = linkage_data.steam_titles(), linkage_data.catalogue()
    rows = list(range(0, len(queries), 100))
    checks = {}
    for name in ("levenshtein", "levenshtein-normalised"):
        partner, distance = topk([queries[row] for row in rows], candidates, metric=name, k=50, device="cpu")
        checks[name] = [partner.tolist(), distance.tolist()]
    return {"queries": queries, "candidates": candidates, "rows": rows, "checks": checks}


def bench_titles(card: Card) -> None:
    data = read_titles()
    queries, candidates = data["queries"], data["candidates"]
    for name, (partner, distance) in data["checks"].items():
        table = gpu.TextTable(queries, candidates, normalised=name != "levenshtein")
        search = gpu.DeviceSearch(table, [card.device])
        wanted = {row: i for i, row in enumerate(data["rows"])}
        exact = True
        for tile in search.tiles():
            found, values = search.best(tile, 50)
            for i, row in enumerate(tile.tolist()):
                if row in wanted:
                    here = wanted[row]
                    exact &= found[i].tolist() == partner[here] and values[i].tolist() == distance[here]
        first, call, on_card = search_seconds(table, 50, card.device)
        characters = sum(map(len, candidates)) * sum(max(1, -(-len(text) // 32)) for text in queries)
        floor = OPERATIONS_PER_CHARACTER * characters / card.integers
        print(
            f"{name} {len(queries):,} x {len(candidates):,} K=50: on card {on_card:.3f} s, call {call:.3f} "
            f"(first {first:.2f}) | floor without skipping lengths {floor:.3f} | exact {exact}",
            flush=True,
        )


def random_job(data: PaperData) -> tuple[PrimaryData, SecondaryData, Split]:
    """Return random arrays with the sizes of one of the paper's jobs, split 7:1:2."""
    rng, (n, m) = np.random.default_rng(0), data.records
    partner = rng.integers(0, m, (n, data.partners), dtype=np.int32)
    similarity = rng.standard_normal((n, data.partners), dtype=np.float32)
    labels = rng.normal(size=n) if data.classes == 1 else rng.integers(0, data.classes, n)
    own, theirs = (
        rng.standard_normal((rows, columns), dtype=np.float32)
        for rows, columns in zip(data.records, data.columns, strict=True)
    )
    task_type = TaskType.NUMBERS if data.classes == 1 else TaskType.CLASSES
    split = Split(*np.split(rng.permutation(n), [7 * n // 10, 8 * n // 10]))
    return PrimaryData(own, labels, task_type), SecondaryData(theirs, partner, similarity), split


def bench_epochs(card: Card) -> None:
    """Time epochs of FedSim with the paper's settings, including validation.

    The floor covers the products, in TF32 at the measured rate, and the optimiser's ten passes over the weights.
    """
    for name in ("house", "taxi", "hdb", "game", "company"):
        data = PAPER_DATA[name]
        *parties, split = random_job(data)
        steps = data.config.steps_per_epoch(len(split.train))
        floor = steps * step_floor(card, parties[0], parties[1:], split, replace(data.config, device="cuda"))
        config = replace(data.config, epochs=6, device="cuda")
        times = [epoch.seconds for epoch in train(parties[0], parties[1:], split, config).history]
        middle = statistics.median(times[1:])
        print(
            f"epoch {name}, paper's settings: {middle:.3f} s (first {times[0]:.2f}), {steps} steps of "
            f"{data.config.batch} records, {1e6 * middle / steps:.0f} us per step | floor {floor:.3f}",
            flush=True,
        )
        torch.cuda.empty_cache()


def step_floor(
    card: Card, primary: PrimaryData, secondaries: Sequence[SecondaryData], split: Split, config: Config
) -> float:
    """Return the minimum seconds per step."""
    context = training_settings(config, split, None)
    job = prepare_job(primary, start_local_secondaries(secondaries, context), split, context)
    models = [job.primary.model, *(holder.model for holder in job.secondaries if isinstance(holder, LocalSecondary))]
    n_bytes = sum(weights.nbytes for model in models for weights in model.network.parameters())
    rows = torch.from_numpy(split.train[: config.batch]).to(card.device)
    request = BatchRequest(
        rows, [next(partners.requests([split.train[: config.batch]])) for partners in job.records.lists]
    )
    with FlopCounterMode(display=False) as counter:
        job.primary.descend(job.records, job.scaled, request, 0)
    return counter.get_total_flops() / card.products + 10 * n_bytes / card.bytes


def bench_planner(card: Card) -> None:
    """Print what the planner chooses for some tables, and the time of both alternatives."""
    from fedsim.linkage import link  # noqa: PLC0415 - needs numba

    rng = np.random.default_rng(0)
    words = {name: random_filters(n, 1024, card.device, seed) for seed, (name, n) in enumerate(PLANNED.items())}
    bits = {name: table.view(np.uint8) for name, table in words.items()}
    points = {name: rng.normal(size=(n, 4)) for name, n in PLANNED.items()}
    for metric, tables in (("hamming", bits), ("euclidean", points)):
        for left, right in (("small", "small"), ("large", "small"), ("large", "large")):
            took, plans = {}, {}
            for device in ("auto", "cpu", "cuda"):
                start = time.perf_counter()
                plans[device] = link(tables[left], tables[right], metric=metric, k=20, device=device).plan
                took[device] = time.perf_counter() - start
            sizes = f"{len(tables[left]):,} x {len(tables[right]):,}"
            times = ", ".join(f"{device} {value:.2f} s" for device, value in took.items())
            print(f"planner, {metric} {sizes} K=20: {times} | {plans['auto']}", flush=True)


PLANNED = {"small": 20_000, "large": 200_000}
CASES: dict[str, Callable[[Card], None]] = {
    "random": lambda card: bench_filters(card, 2048, "random", compare=True),
    "clustered": lambda card: bench_filters(card, 2048, "clustered", compare=False),
    "short": lambda card: bench_filters(card, 1024, "random", compare=False),
    "million": bench_million,
    "hard": bench_hard,
    "points": bench_points,
    "titles": bench_titles,
    "epochs": bench_epochs,
    "planner": bench_planner,
}


def main(cases: Sequence[str] | None = None) -> None:
    """Run the named cases, or all."""
    if not gpu.devices():
        print("no CUDA device was found; this benchmark needs one")
        return
    card = Card()
    print(card, flush=True)
    for name in cases or CASES:
        CASES[name](card)


if __name__ == "__main__":
    if sys.argv[1:2] == ["titles"] and len(sys.argv) == 3:
        with gzip.open(Path(sys.argv[2]), "wt", encoding="utf-8") as output:
            json.dump(make_titles(), output)
    else:
        main(sys.argv[1:])
