"""Run three parties as processes with mutual TLS: flat prices predicted with the help of another party's rentals.

``python run.py`` works in a temporary folder; ``python run.py FOLDER`` keeps everything in a new or empty one. The same
by hand, command by command, is in the README beside this file.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedsim.cli.demo import free_ports
from fedsim.data.synthetic import city
from fedsim.report.formatting import format_bytes

HERE = Path(__file__).parent
FEDSIM = Path(sys.executable).with_name("fedsim")
PARTIES = {"notary": "coordinator", "rentals": "secondary", "city": "primary"}
FIXED_PORTS = ("7411", "7412")
LAST_LINES = 4
LONGEST = 600.0  # seconds until the parties are stopped


def main(arguments: list[str]) -> int:
    """Prepare and run the job; return the exit code."""
    if arguments:
        folder = Path(arguments[0])
        folder.mkdir(parents=True, exist_ok=True)
        return three_processes(folder)
    with TemporaryDirectory(prefix="three-processes-") as name:
        return three_processes(Path(name))


def three_processes(folder: Path) -> int:
    """Write all files to a folder, run the parties and print the result."""
    write_files(folder)
    write_tables(folder)
    make_secrets(folder)
    began = time.perf_counter()
    codes = run_parties(folder)
    print(f"\nall three parties finished after {time.perf_counter() - began:.0f} seconds\n")
    for name in PARTIES:
        print_last_lines(folder, name)
    if any(codes.values()):
        print(f"failed, exit codes: {codes}", file=sys.stderr)
        return 1
    print_received(folder)
    return 0


def write_files(folder: Path) -> None:
    """Copy job and party files; replace fixed ports by free ones."""
    for path in HERE.glob("*.toml"):
        shutil.copy(path, folder)
    text = (folder / "job.toml").read_text(encoding="utf-8")
    for fixed, free in zip(FIXED_PORTS, free_ports(len(FIXED_PORTS)), strict=True):
        text = text.replace(f":{fixed}", f":{free}")
    (folder / "job.toml").write_text(text, encoding="utf-8")


def write_tables(folder: Path) -> None:
    """Write flats with prices and rentals with rents; they share locations, but no key."""
    town = city(np.random.default_rng(7))
    town.flats.write_csv(folder / "flats.csv")
    city(np.random.default_rng(8)).flats.drop("price").head(20).write_csv(folder / "new-flats.csv")
    town.rentals.write_csv(folder / "rentals.csv")


def make_secrets(folder: Path) -> None:
    """Create the linkage key, a certificate for each party and each owner's approval."""
    fedsim(folder, "certs", "key", "--out", "linkage.key")
    fedsim(folder, "certs", "--coordinator", "notary", "--primary", "city", "--secondary", "rentals", "--quiet")
    for name in PARTIES:
        fedsim(folder, "approve", "job.toml", f"{name}.toml", "--yes")


def fedsim(folder: Path, *words: str) -> None:
    """Run one command and print it as a user would type it; print its output only if it fails."""
    print("$ fedsim", *words, flush=True)
    done = subprocess.run([FEDSIM, *words], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}`fedsim {words[0]}` failed")


def run_parties(folder: Path) -> dict[str, int]:
    """Start all parties, wait for them and return their exit codes."""
    running = {name: start(folder, name) for name in PARTIES}
    deadline = time.monotonic() + LONGEST
    try:
        return {name: process.wait(deadline - time.monotonic()) for name, process in running.items()}
    except subprocess.TimeoutExpired:
        return dict.fromkeys(running, -1)
    finally:
        for process in running.values():
            process.kill()


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start one party as a process; its output goes to a file."""
    words = ["party", "job.toml", f"{name}.toml"]
    print("$ fedsim", *words, "&", flush=True)
    with (folder / f"{name}.out").open("wb") as out:
        return subprocess.Popen([FEDSIM, *words], cwd=folder, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603


def print_last_lines(folder: Path, name: str) -> None:
    """Print the last lines of one party, without its indented ledger."""
    lines = (folder / f"{name}.out").read_text(encoding="utf-8", errors="replace").splitlines()
    print(f"{name}, the {PARTIES[name]}:")
    for line in [line for line in lines if not line.startswith("  ")][-LAST_LINES:]:
        print(f"  {line}")


def print_received(folder: Path) -> None:
    """Print what each party received, from its own ledger."""
    print("\nwhat each of them saw of the others:")
    for path in sorted(folder.glob("*-run/flats-*/ledger.json")):
        party = path.parents[1].name.removesuffix("-run")
        print(
            f"  {party:8}", ", ".join(f"{kind} {format_bytes(total)}" for kind, total in received(path, party).items())
        )
    print("the tables never left their owners; the notary saw encoded identifiers, and no feature, label or key")


def received(path: Path, party: str) -> Counter[str]:
    """Return the bytes that a party received, by kind of message."""
    seen: Counter[str] = Counter()
    for entry in json.loads(path.read_text(encoding="utf-8")):
        if entry["receiver"] == f"{PARTIES[party]} '{party}'":
            seen[entry["kind"]] += entry["bytes"]
    return seen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
