"""The example with three processes over mutual TLS runs by itself, and by hand as its README says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedsim.party.audit_log import verify

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "three_processes"
LONGEST = 240  # seconds; it takes 15 to 30 on two idle cores
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("three") / "new"
    command = [sys.executable, str(EXAMPLE / "run.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_it_tells_how_good_the_model_is_and_who_saw_what(finished: tuple[Path, str]) -> None:
    _, said = finished
    assert re.search(r"test +rmse \d+", said)
    assert float(re.findall(r"r2 (\S+)", said)[-1]) > 0.8
    assert re.search(r"notary .*candidates .*queries ", said)


def test_the_notary_received_encoded_identifiers_and_nothing_of_the_training(finished: tuple[Path, str]) -> None:
    ledger = json.loads(next(finished[0].glob("notary-run/flats-*/ledger.json")).read_text())
    received = {entry["kind"] for entry in ledger if entry["receiver"].startswith("coordinator")}
    assert received <= {"hello", "offer", "candidates", "queries", "finish", "farewell"}
    assert {"candidates", "queries"} <= received


def test_every_party_kept_an_audit_log_that_holds(finished: tuple[Path, str]) -> None:
    for name in ("notary", "rentals", "city"):
        assert verify(finished[0] / f"{name}-run" / "audit.jsonl") >= 3


def test_a_folder_that_was_used_before_is_refused(finished: tuple[Path, str]) -> None:
    command = [sys.executable, str(EXAMPLE / "run.py"), str(finished[0])]
    again = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert again.returncode != 0
    assert "linkage.key exists" in again.stderr


def commands(heading: str) -> list[str]:
    """The commands of one section of the README."""
    section = re.split(r"^## ", (EXAMPLE / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = next(part for part in section if part.startswith(heading))
    return re.findall(r"^\$ (.+)$", found, re.MULTILINE)


def shell(script: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/bash", "-ec", script], cwd=folder, env={**os.environ, "PATH": PATH}, stderr=subprocess.PIPE, text=True
    )


def left_well(terminal: subprocess.Popen[str]) -> None:
    _, faults = terminal.communicate(timeout=LONGEST)
    assert terminal.returncode == 0, faults


def test_the_commands_of_the_readme_run_as_written(tmp_path: Path, finished: tuple[Path, str]) -> None:
    (project := tmp_path / "project").mkdir()
    (project / "examples").symlink_to(ROOT / "examples")
    before, three = commands("Before"), tmp_path / "three"
    left_well(shell("\n".join(before[:4]), project))
    free_ports = (finished[0] / "job.toml").read_text()  # those of the page may be in use here
    (three / "job.toml").write_text(free_ports.replace("epochs = 8", "epochs = 1"))
    left_well(shell("\n".join(before[4:]), three))
    for terminal in [shell(command, three) for command in commands("Three terminals")]:
        left_well(terminal)
    left_well(shell("\n".join(commands("After")), three))
