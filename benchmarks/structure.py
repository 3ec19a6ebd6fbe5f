"""Measure the code base and compare it with the aims of this version.

``python benchmarks/structure.py`` prints every figure with that of 0.2, what this version must reach and what it aims
at; ``--markdown`` prints the table of ``docs/architecture.md``, and ``--lists`` the modules behind the figures.
"""

from __future__ import annotations

import argparse
import ast
import collections
import importlib
import pkgutil
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
CORE, LAB = "fedsim", "fedsim_lab"
GENERATED = "_pb2.py"
NOT_TESTED = ("__init__", "__main__", "version")  # nothing of their own to test
# Names of what fits the network and what fits trees; a module that calls both is a pipeline.
NETWORK_FITS, TREE_FITS = ("train", "train_with"), ("fit_trees", "StackedTrees")
RETRY = re.compile(r"\w*(BACK_OFF|RETRY)\w*")
TEST_MINUTES = 7.6  # of `make test` on two idle cores; measured by hand


@dataclass(frozen=True)
class Measure:
    """A figure of this version beside those of 0.2, the required and the desired one; fewer is better."""

    name: str
    before: float
    now: float | None
    must: float
    aim: float
    behind: Sequence[str] = ()  # the modules that are counted

    @property
    def verdict(self) -> str:
        if self.now is None:
            return "not measured"
        return "aim" if self.now <= self.aim else "must" if self.now <= self.must else "not yet"


def measures() -> Iterator[Measure]:
    """Yield every figure."""
    packages = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())
    lines = {package: sum(map(count_lines, modules(package))) for package in packages}
    yield Measure("core `src/fedsim`, lines", 55_866, lines[CORE], 40_000, 36_000)
    others = [f"{package} {lines[package]:,}" for package in packages]
    beside = sum(count for package, count in lines.items() if package != LAB)
    yield Measure("all packages but the lab, lines", 56_500, beside, 47_000, 43_000, others)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split()) for page in pages}
    longest = [f"{page} {count:,}" for page, count in sorted(words.items(), key=lambda item: -item[1])]
    yield Measure("words of docs and README, with ADRs", 50_900, sum(words.values()), 35_000, 28_000, longest)
    passed = record_path()
    yield Measure("files a record passes, CSV to prediction", 73, len(passed), 55, 45, passed)
    copies = [name for name in map(module_name, modules(CORE)) if calls_both_fits(name)]
    yield Measure("copies of the pipeline", 5, len(copies), 1, 1, copies)
    settings = list(leaf_settings())
    yield Measure("settings of a job and of a party", 57 + 87, len(settings), 100, 80, settings)
    yield from files_to_change()
    names = [name for package in packages for name in map(module_name, modules(package)) if has_content(name)]
    tested = {path.name for path in TESTS.rglob("test_*.py")}
    untested = [name for name in names if f"test_{name.rpartition('.')[2]}.py" not in tested]
    yield Measure("modules without a test file of their name", 91, len(untested), 10, 0, untested)
    same = collections.Counter(name.rpartition(".")[2] for name in names)
    twice = sorted(name for name in names if same[name.rpartition(".")[2]] > 1)
    yield Measure("module names used twice", 10, sum(count > 1 for count in same.values()), 0, 0, twice)
    yield Measure("`make test` on two idle cores, minutes", 9, TEST_MINUTES, 8, 6)


def modules(package: str) -> list[Path]:
    """Return the files of a package, without those that protoc writes."""
    return [path for path in sorted((SOURCE / package).rglob("*.py")) if not path.name.endswith(GENERATED)]


def module_name(path: Path) -> str:
    """Return the full name of the module in a file."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def read_module(name: str) -> str:
    """Return the source of a module."""
    return SOURCE.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def has_content(name: str) -> bool:
    """Return whether a module defines anything, rather than giving the names of others."""
    if name.rpartition(".")[2] in NOT_TESTED:
        return False
    body = ast.parse(read_module(name)).body
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in body)


def calls_both_fits(name: str) -> bool:
    """Return whether a module outside ``fedsim.training`` fits a network and trees."""
    if name.startswith("fedsim.training"):
        return False
    called = set()
    for node in ast.walk(ast.parse(read_module(name))):
        if isinstance(node, ast.Call):
            named = [part.id for part in ast.walk(node.func) if isinstance(part, ast.Name)]
            attribute = getattr(node.func, "attr", "")
            called |= {attribute} if attribute in NETWORK_FITS else set()
            if attribute in ("", "fit"):  # StackedTrees.fit(...), train(...)
                called |= set(named)
    return bool(called & set(NETWORK_FITS)) and bool(called & set(TREE_FITS))


def leaf_settings() -> Iterator[str]:
    """Yield the settings of job and party files, without those of one kind of encoding."""
    for setting in importlib.import_module("fedsim.config.settings_schema").list_settings():
        if not setting.inside and not setting.of_kind:
            yield f"{setting.file}: {setting.name}"


def files_to_change() -> Iterator[Measure]:
    """Yield in how many files a new choice is named: where it is registered, and where names are compared."""
    registry = importlib.import_module("fedsim.registry")
    kinds = {"metric": (registry.METRICS, 8), "split": (registry.SPLITS, 6), "wire format": (registry.WIRE_FORMATS, 4)}
    for kind, (choices, before) in kinds.items():
        names = set(choices.names(in_jobs=True))
        compared = [name for name in map(module_name, modules(CORE)) if names & set(compared_texts(name))]
        yield Measure(f"files to change for a new {kind}", before, 1 + len(compared), 1, 1, compared)
    waits = [
        name
        for name in map(module_name, modules(CORE))
        for node in ast.parse(read_module(name)).body
        if isinstance(node, ast.Assign) and RETRY.match(ast.unparse(node.targets[0]).strip("()"))
    ]
    yield Measure("files to change for a new retry", 6, len(waits), 1, 1, waits)


def compared_texts(name: str) -> Iterator[str]:
    """Yield the texts that a module compares something with."""
    for node in ast.walk(ast.parse(read_module(name))):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        for part in parts:
            for constant in ast.walk(part):
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    yield constant.value


def record_path() -> list[str]:
    """Return the files of all packages that run while two CSV files become a model, and it predicts a record."""
    for module in pkgutil.walk_packages([str(SOURCE / CORE)], f"{CORE}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)  # so that no module is executed while files are noted
    sys.path.insert(0, str(TESTS))
    importlib.import_module("job_fixtures")  # likewise, as it makes files of its own
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)) and code.co_name != "<module>":
            seen.add(str(Path(code.co_filename).relative_to(SOURCE)))

    with tempfile.TemporaryDirectory() as folder:
        job, *parties = _write_job(Path(folder))
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            _train_and_predict(job, parties)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return sorted(seen)


def _train_and_predict(job_path: Path, paths: list[Path]) -> None:
    read_job = importlib.import_module("fedsim.config.job").read_job
    read_party_file = importlib.import_module("fedsim.config.party_file").read_party_file
    context = importlib.import_module("fedsim.runtime.party_context")
    transport = importlib.import_module("fedsim.protocol.transport").InProcessTransport()
    job, files = read_job(job_path), [read_party_file(path) for path in paths]
    importlib.import_module("fedsim.runtime.run_local").run_local(job, files)
    staying = importlib.import_module("job_fixtures").staying
    primary = next(file for file in files if file.role == "primary")
    versions = context.software_versions()
    with ExitStack() as stack:
        for file in files:
            if file is not primary:
                stack.enter_context(staying(job, file, transport))
        opened = stack.enter_context(context.open_party_context(job, primary, transport, versions, predicting=True))
        predictor = importlib.import_module("fedsim.runtime.predictor").Predictor(opened, wait_seconds=60.0)
        reader = importlib.import_module("fedsim.data.table_reader")
        records = reader.infer_numbers(reader.read_table(primary.data.file)).drop("price").head(3)
        predictor.predict(records)


def _write_job(folder: Path) -> list[Path]:
    """Let `fedsim init` write the files of a small job of two tables; return the job file and the party files."""
    rng = np.random.default_rng(0)
    rents, flats = rng.uniform(0, 1, (400, 3)), rng.uniform(0, 1, (300, 3))
    locations = [np.c_[1.2 + table[:, 0] / 5, 103.7 + table[:, 1] / 5, table[:, 2]] for table in (flats, rents)]
    _write(folder / "flats.csv", "lat,lon,area,price", np.c_[locations[0], flats.sum(1)])
    _write(folder / "rentals.csv", "lat,lon,rent", locations[1])
    out = folder / "job"
    tables = ["--primary", str(folder / "flats.csv"), "--secondary", str(folder / "rentals.csv")]
    _fedsim("init", *tables, "--label", "price", "--epochs", "2", "--yes", "--quiet", "--out", str(out))
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


def as_text(found: Sequence[Measure], *, lists: bool) -> Iterator[str]:
    """Yield the lines for a terminal of 80 columns."""
    yield f"{'':42}{'0.2':>8}{'now':>8}{'must':>8}{'aim':>8}"
    for one in found:
        numbers = "".join(f"{_cell(value):>8}" for value in (one.before, one.now, one.must, one.aim))
        yield f"{one.name.replace('`', ''):42}{numbers}  {one.verdict}"
        if lists:
            yield from (f"    {line}" for line in one.behind)


def as_markdown(found: Sequence[Measure]) -> Iterator[str]:
    """Yield the lines of a table for a page."""
    yield "| measure | 0.2 | now | must | aim |"
    yield "|---|---|---|---|---|"
    for one in found:
        yield f"| {one.name} | {' | '.join(map(_cell, (one.before, one.now, one.must, one.aim)))} |"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/architecture.md")
    parser.add_argument("--lists", action="store_true", help="also print the modules that are counted")
    options = parser.parse_args()
    found = list(measures())
    print("\n".join(as_markdown(found) if options.markdown else as_text(found, lists=options.lists)))


if __name__ == "__main__":
    main()
