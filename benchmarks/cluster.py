"""Link large tables on a Ray cluster on this machine: places, and filters of 1,024 bits.

Run it with ``fedsim lab bench cluster``; a case is a kind and a number of records in each table, such as
``places:1000000`` or ``filters:250000``. Tables and unfinished results are kept in the folder FEDSIM_BENCH_FOLDER
(default: build/cluster), so a killed run continues there; the reported time is then that of the last start. Memory is
the highest sum of the proportional set sizes of all processes, including Ray and its object store, sampled every two
seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.linkage import save_encoded
from fedsim.types import EncodedTable

CASES = tuple(f"places:{n}" for n in (1_250_000, 2_500_000, 5_000_000, 10_000_000)) + tuple(
    f"filters:{n}" for n in (50_000, 100_000, 200_000, 2_000_000)
)
FOLDER = Path(os.environ.get("FEDSIM_BENCH_FOLDER", "build/cluster"))
RECORDS_PER_PART, N_BITS, K, SAMPLE_SECONDS = 250_000, 1024, 10, 2.0
HEAD = (
    "| tables | records in each | parts | wall s | CPU s | peak memory GB | million pairs/s | CPU µs per record |",
    "|---|---|---|---|---|---|---|---|",
)


def write_places(path: Path, n: int, rng: np.random.Generator) -> None:
    """Write places in a country, accurate to about a metre."""
    places = {"lat": rng.uniform(47, 55, n).round(5), "lon": rng.uniform(6, 15, n).round(5)}
    pl.DataFrame(places).write_parquet(path.with_suffix(".parquet"))


def write_filters(path: Path, n: int, rng: np.random.Generator) -> None:
    """Write filters with a quarter of the bits set, half of the filters around common centres."""
    shape = (n, N_BITS // 8)
    bits, kind = np.bitwise_and(*rng.integers(0, 256, (2, *shape), np.uint8)), rng.integers(0, 20_000, n)
    centres = np.bitwise_and(*np.random.default_rng(0).integers(0, 256, (2, 10_000, shape[1]), np.uint8))
    near = kind < len(centres)
    bits[near] = centres[kind[near]] ^ (bits[near] & rng.integers(0, 256, bits[near].shape, np.uint8) & 0x55)
    save_encoded(EncodedTable(bits, N_BITS, "0" * 64), path.with_suffix(".safetensors"))


def make_tables(kind: str, n: int) -> list[Path]:
    """Write both tables in parts, unless an earlier run already did."""
    write = {"places": write_places, "filters": write_filters}[kind]
    folders = [FOLDER / f"{kind}-{n}-{side}" for side in ("primary", "secondary")]
    for seed, folder in enumerate(folders, 1):
        part = folder.with_suffix(".part")
        if not folder.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            rng = np.random.default_rng(seed)
            for number, first in enumerate(range(0, n, RECORDS_PER_PART)):
                write(part / f"part-{number:04}", min(RECORDS_PER_PART, n - first), rng)
            part.rename(folder)
    return folders


def process_tree(root: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(path.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def memory_and_time(pid: int) -> tuple[float, float]:
    """Return the proportional set size in bytes and the CPU seconds of a process; zero if it has exited."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, IndexError):
        return 0.0, 0.0
    size = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return size * 1024.0, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return seconds, CPU seconds and peak memory of it and all its descendants."""
    started, peak, spent = time.perf_counter(), 0.0, dict[int, float]()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
    while running.poll() is None:
        sampled = {pid: memory_and_time(pid) for pid in process_tree(running.pid)}
        peak = max(peak, sum(size for size, _ in sampled.values()))
        spent |= {pid: seconds for pid, (_, seconds) in sampled.items() if seconds}
        time.sleep(SAMPLE_SECONDS)
    if running.returncode:
        raise RuntimeError(f"{command} failed with {running.returncode}")
    return time.perf_counter() - started, sum(spent.values()), peak


def run_case(case: str) -> str:
    """Link one pair of tables and return its row of the results table."""
    kind, count = case.split(":")
    n = int(count)
    primary, secondary = make_tables(kind, n)
    out, notes = FOLDER / f"{kind}-{n}-links", FOLDER / f"{kind}-{n}.json"
    if not notes.is_file():
        shutil.rmtree(out, ignore_errors=True)
        search = ["--on", "lat,lon"] if kind == "places" else ["--metric", "dice"]
        tables = ["--primary", str(primary), "--secondary", str(secondary), "--out", str(out)]
        engine = ["--engine", "ray", "--k", str(K), "--quiet", "--json"]
        figures = measure([sys.executable, "-m", "fedsim", "link", *tables, *search, *engine])
        notes.write_text(json.dumps(figures))
        for folder in (primary, secondary, out):
            shutil.rmtree(folder)
    wall, cpu, peak = json.loads(notes.read_text())
    parts = -(-n // RECORDS_PER_PART)
    figures = f"{wall:,.0f} | {cpu:,.0f} | {peak / 1e9:.1f} | {n * n / wall / 1e6:,.0f} | {1e6 * cpu / n:,.0f}"
    return f"| {kind} | {n:,} | {parts} | {figures} |"


def main(cases: list[str] | None = None) -> None:
    """Print the table."""
    print(*HEAD, sep="\n")
    for case in cases or CASES:
        print(run_case(case), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
