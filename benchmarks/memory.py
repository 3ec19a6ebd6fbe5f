"""Peak memory of every party of a job on large generated tables, with the time of each phase.

``fedsim lab bench memory -- --records 200000`` runs the job that ``fedsim init --yes`` proposes for two tables of
places with eight features each (K = 20, trees combined with the network, an embedding), as three processes on this
machine; with ``--one-process``, it runs in one process like ``fedsim train``. Resident memory is split into private
memory and mapped files, whose pages the system reclaims when it needs them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from default_job import change_job, fedsim, init

NAMES = ("notary", "ours", "theirs")
FEATURES, SAMPLE = 8, 20_000
LOW, HIGH = (1.2, 103.5), (1.74, 104.0)
MEBI = 1024.0
HEADS = ("party", "phase", "seconds", "peak resident MB", "of it private MB", "mapped files MB")


def write_table(path: Path, n_records: int, prefix: str, rng: np.random.Generator) -> pl.DataFrame:
    """Write a table of places and features, the primary's with a label; return its first records."""
    places = rng.uniform(LOW, HIGH, (n_records, 2)).round(6)
    columns = {"lat": places[:, 0], "lon": places[:, 1]}
    columns |= {f"{prefix}{place}": rng.normal(size=n_records).round(4) for place in range(FEATURES)}
    frame = pl.DataFrame(columns)
    if prefix == "own":
        price = 3 * columns["lat"] + columns["own0"] + rng.normal(size=n_records)
        frame = frame.with_columns(price=pl.Series(price.round(4)))
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path, row_group_size=250_000)
    return frame.head(SAMPLE)


def resident(pid: int) -> tuple[float, float, float]:
    """Return the resident memory of a process, its private part and its mapped files, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    sizes = {line.split(":")[0]: float(line.split()[1]) / MEBI for line in lines if line.endswith(" kB")}
    return tuple(sizes.get(name, 0.0) for name in ("VmRSS", "RssAnon", "RssFile"))  # type: ignore[return-value]


def phase_of(folder: Path, name: str) -> str:
    """Return the phase that a party has published."""
    found = sorted(folder.glob(f"{name}-run/**/progress.json"))
    try:
        return str(json.loads(found[-1].read_text())["phases"][-1]["name"]) if found else "start"
    except (OSError, ValueError, LookupError):
        return "start"


def watch(folder: Path, commands: dict[str, list[str]]) -> int:
    """Run commands side by side and print a row per party and phase; return the greatest exit code."""
    logs = {name: (folder / f"{name}.log").open("w") for name in commands}
    running = {
        name: subprocess.Popen(words, cwd=folder, stdout=logs[name], stderr=subprocess.STDOUT)  # noqa: S603
        for name, words in commands.items()
    }
    peaks: dict[tuple[str, str], list[float]] = {}
    while any(process.poll() is None for process in running.values()):
        for name, process in running.items():
            if process.poll() is None:
                try:
                    now = resident(process.pid)
                except OSError:
                    continue
                seen = peaks.setdefault((name, phase_of(folder, name)), [time.monotonic(), 0.0, 0.0, 0.0, 0.0])
                seen[1] = time.monotonic() - seen[0]
                if now[0] > seen[2]:
                    seen[2:] = now
        time.sleep(0.2)
        if any(process.poll() for process in running.values()):
            time.sleep(5)
            for process in running.values():
                process.terminate()
    print(f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", sep="\n")
    for (name, phase), (_, *sizes) in peaks.items():
        print(f"| {name} | {phase} | {' | '.join(f'{size:,.0f}' for size in sizes)} |")
    codes = [process.wait() for process in running.values()]
    if any(codes):
        print(*((folder / f"{name}.log").read_text()[-3000:] for name in commands), sep="\n")
    return max(codes)


def main(words: Sequence[str] | None) -> None:
    """Generate the tables, run the job and print the table."""
    parser = argparse.ArgumentParser("fedsim lab bench memory --")
    parser.add_argument("--records", type=int, default=200_000, help="of the primary")
    parser.add_argument("--candidates", type=int, help="secondary records; default: as many as primary records")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--method", default="stacked")
    parser.add_argument("--preset", default="modern")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--width", type=int, default=16, help="width of the local networks; narrow ones train faster")
    parser.add_argument("--parquet", action="store_true", help="use Parquet files instead of CSV")
    parser.add_argument("--one-process", action="store_true", help="run all parties in one process")
    parser.add_argument("--folder", type=Path, help="keep tables and runs in this folder, and reuse its tables")
    asked = parser.parse_args(words or ())
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        sizes = {"ours": asked.records, "theirs": asked.candidates or asked.records}
        suffix, samples, rng = "parquet" if asked.parquet else "csv", {}, np.random.default_rng(0)
        for (name, size), prefix in zip(sizes.items(), ("own", "other"), strict=True):
            samples[name] = write_table(folder / f"{name}-{size}.{suffix}", size, prefix, rng)
        init(folder, samples["ours"], samples["theirs"], "price", "--epochs", str(asked.epochs))
        sizes_of_steps = f"batch_size = {asked.batch}\nmembers = {asked.members}\nwidth = {asked.width}"
        change_job(folder, "batch_size = 256", sizes_of_steps)
        change_job(folder, 'method = "stacked"', f'method = "{asked.method}"')
        change_job(folder, 'preset = "modern"', f'preset = "{asked.preset}"')
        if asked.method != "stacked":
            change_job(folder, 'embedding = "random"', "")
        for name, size in sizes.items():
            party = folder / f"{name}.toml"
            party.write_text(party.read_text().replace(f'"{name}.csv"', f'"{name}-{size}.{suffix}"'))
        for name in NAMES:
            fedsim(folder, "approve", "job.toml", f"{name}.toml", "--yes")
        program = [sys.executable, "-m", "fedsim"]
        commands = {name: [*program, "party", "--insecure", "job.toml", f"{name}.toml"] for name in NAMES}
        if asked.one_process:
            commands = {"ours": [*program, "train", "job.toml", *(f"{name}.toml" for name in NAMES)]}
        print(f"{asked.records:,} x {sizes['theirs']:,} records, {suffix}, method {asked.method}", flush=True)
        sys.exit(watch(folder, commands))
