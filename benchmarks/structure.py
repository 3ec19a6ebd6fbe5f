"""Measure the code base: files, lines, repetition, and how many files a record passes through to a saved model.

``python benchmarks/structure.py`` prints the figures of the before/after table in ``docs/architecture.md``.
"""

from __future__ import annotations

import ast
import collections
import importlib
import pkgutil
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

SOURCE = Path(__file__).parent.parent / "src"


def main() -> None:
    """Print one line per figure."""
    for package in sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()):
        for name, value in file_figures(SOURCE / package).items():
            print(f"{package:12} {name:42} {value}")
    functions, files = record_path()
    print(f"{'fedsim':12} {'functions a record passes':42} {functions}")
    print(f"{'fedsim':12} {'files a record passes':42} {files}")


def file_figures(package: Path) -> dict[str, object]:
    """Count files, lines, import lines, comment lines and class names in one package."""
    lengths, imports, comments = [], 0, 0
    classes: collections.Counter[str] = collections.Counter()
    for path in package.rglob("*.py"):
        if path.name.endswith("_pb2.py"):
            continue
        text = path.read_text(encoding="utf-8")
        lengths.append(len(text.splitlines()))
        comments += sum(line.lstrip().startswith("#") for line in text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
    total = sum(lengths)
    return {
        "files": len(lengths),
        "lines": total,
        "median file": int(np.median(lengths)),
        "p90 file": int(np.percentile(lengths, 90)),
        "import lines, percent": round(100 * imports / total, 1),
        "comment lines, percent": round(100 * comments / total, 1),
        "public class names defined more than once": sum(count > 1 for count in classes.values()),
    }


def record_path() -> tuple[int, int]:
    """Count the functions and files of the product that run while two CSV files become a saved model."""
    for module in pkgutil.walk_packages([str(SOURCE / "fedsim")], "fedsim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)  # so that no module is executed while functions are counted
    run_local = importlib.import_module("fedsim.runtime.run_local").run_local
    read_job = importlib.import_module("fedsim.config.job").read_job
    read_party_file = importlib.import_module("fedsim.config.party_file").read_party_file
    seen: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE / "fedsim")) and code.co_name != "<module>":
            seen.add((code.co_filename, code.co_qualname))

    with tempfile.TemporaryDirectory() as folder:
        job, *parties = _write_job(Path(folder))
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            run_local(read_job(job), [read_party_file(party) for party in parties])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return len(seen), len({file for file, _ in seen})


def _write_job(folder: Path) -> list[Path]:
    """Let `fedsim init` write the files of a small job of two tables; return the job file and the party files."""
    rng = np.random.default_rng(0)
    rents, flats = rng.uniform(0, 1, (400, 3)), rng.uniform(0, 1, (300, 3))
    locations = [np.c_[1.2 + table[:, 0] / 5, 103.7 + table[:, 1] / 5, table[:, 2]] for table in (flats, rents)]
    _write(folder / "flats.csv", "lat,lon,area,price", np.c_[locations[0], flats.sum(1)])
    _write(folder / "rentals.csv", "lat,lon,rent", locations[1])
    out = folder / "job"
    tables = ["--primary", str(folder / "flats.csv"), "--secondary", str(folder / "rentals.csv")]
    _fedsim("init", *tables, "--label", "price", "--sigma", "0", "--epochs", "2", "--yes", "--quiet", "--out", str(out))
    job = out / "job.toml"
    parties = [path for path in sorted(out.glob("*.toml")) if path != job]
    for party in parties:
        _fedsim("approve", str(job), str(party), "--yes", "--quiet")
    return [job, *parties]


def _write(path: Path, header: str, cells: np.ndarray) -> None:
    np.savetxt(path, cells, delimiter=",", header=header, comments="", fmt="%.6f")


def _fedsim(*words: str) -> None:
    try:
        importlib.import_module("fedsim.cli").main(words)
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    main()
