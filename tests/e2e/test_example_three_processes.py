"""The example with three processes over mutual TLS runs by itself, and by hand as its README says."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import polars as pl
import pytest
import typer

from fedsim.cli.app import app
from fedsim.cli.demo import free_ports
from fedsim.runs.run_folder import read_audit_log
from fedsim_lab.faults.processes import start_command
from telemetry_fixtures import scrape, values

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "three_processes"
LONGEST = 600  # seconds; it takes 15 to 30 on two idle cores
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the script with its commands forked from a warm process; `make examples` runs it as it is."""
    folder = tmp_path_factory.mktemp("three")
    script: Any = runpy.run_path(str(EXAMPLE / "run.py"))
    inside = script["three_processes"].__globals__
    inside["fedsim"] = lambda folder, *words: Terminal(shlex.join(["fedsim", *words]), folder).left_well()
    inside["start"] = _Party
    with redirect_stdout(StringIO()) as output:
        assert script["three_processes"](folder) == 0, output.getvalue()
    return folder, output.getvalue()


class _Party:
    """A party of the script, with those methods of ``subprocess.Popen`` that it uses."""

    def __init__(self, folder: Path, name: str) -> None:
        with chdir(folder):
            self._process = start_command(["party", "job.toml", f"{name}.toml"], folder / f"{name}.out")

    def wait(self, seconds: float) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def test_it_tells_how_good_the_model_is_and_who_saw_what(finished: tuple[Path, str]) -> None:
    _, output = finished
    assert re.search(r"test +rmse \d+", output)
    assert float(re.findall(r"r2 (\S+)", output)[-1]) > 0.8
    assert re.search(r"notary .*candidates .*queries ", output)


def test_the_notary_received_encoded_identifiers_and_nothing_of_the_training(finished: tuple[Path, str]) -> None:
    ledger = json.loads(next(finished[0].glob("notary-run/flats-*/ledger.json")).read_text())
    received = {entry["kind"] for entry in ledger if entry["receiver"].startswith("coordinator")}
    assert received <= {"hello", "offer", "candidates", "queries", "finish", "farewell"}
    assert {"candidates", "queries"} <= received


def test_every_party_kept_an_audit_log_that_holds(finished: tuple[Path, str]) -> None:
    for name in ("notary", "rentals", "city"):
        assert len(list(read_audit_log(finished[0] / f"{name}-run" / "audit.jsonl"))) >= 3


def commands(heading: str) -> list[str]:
    """The commands of one section of the README."""
    section = re.split(r"^## ", (EXAMPLE / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = next(part for part in section if part.startswith(heading))
    return re.findall(r"^\$ (.+)$", found, re.MULTILINE)


def shell(script: str, folder: Path) -> None:
    """What is typed before there is a terminal for each party."""
    subprocess.run(["/bin/bash", "-ec", script], cwd=folder, env={**os.environ, "PATH": PATH}, check=True)


class Terminal:
    """A terminal in which a command of the page runs; the process is forked from one that has imported everything."""

    def __init__(self, command: str, folder: Path) -> None:
        first, *words = shlex.split(command)
        assert first == "fedsim"
        self._log = folder / "terminal.log"
        with chdir(folder):
            self._process = start_command(words, self._log)

    @property
    def left(self) -> bool:
        """Whether the command has ended."""
        return self._process.exitcode is not None

    def left_well(self) -> None:
        """Wait for its end."""
        self._process.join(LONGEST)
        assert self._process.exitcode == 0, self._log.read_text()

    def stop(self) -> None:
        """End it as a service manager does."""
        self._process.terminate()
        self.left_well()

    def kill(self) -> None:
        """End it whatever happened."""
        self._process.kill()


def type_all(commands: list[str], folder: Path) -> None:
    """Type commands one after the other."""
    for command in commands:
        Terminal(command, folder).left_well()


def predict_as_written(three: Path, metrics: str) -> None:
    notary, agency, batch, service, worth = commands("Predictions")
    online = [Terminal(command, three) for command in (notary, agency)]
    try:
        ask_as_written(three, batch, service, online, metrics)
        _, command, *words = worth.split()  # test_remote_ladder runs it
        typer.main.get_command(app).commands[command].make_context(command, words)
        for terminal in reversed(online):
            terminal.stop()
    finally:
        for terminal in online:
            terminal.kill()


def ask_as_written(three: Path, batch: str, service: str, online: list[Terminal], metrics: str) -> None:
    type_all([batch], three)
    predicted = pl.read_csv(three / "predictions.csv")
    assert (len(predicted), set(predicted["by"])) == (20, {"fedsim"})
    (port,) = free_ports(1)
    online.append(Terminal(service.replace("7413", str(port)), three))
    answer = asked(three, port, pl.read_csv(three / "new-flats.csv").head(1).to_dicts())
    assert answer["by"] == "fedsim"
    assert answer["predictions"][0] == pytest.approx(predicted["prediction"][0], rel=1e-4)
    assert values(scrape(metrics), "fedsim_requests_total")["/predict", "200"] >= 1
    online.pop().stop()


def asked(three: Path, port: int, records: list[dict[str, object]]) -> dict[str, Any]:
    """What the service answers, once it and the partner are there."""
    deadline = time.monotonic() + LONGEST
    while True:
        token = "".join(path.read_text().strip() for path in three.glob("city-run/**/serve.token"))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = Request(f"http://127.0.0.1:{port}/predict", json.dumps({"records": records}).encode(), headers)
        try:
            with urlopen(request, timeout=LONGEST) as reply:  # noqa: S310
                answer = dict(json.load(reply))
            if answer["by"] != "solo":
                return answer
        except HTTPError:
            if token:  # otherwise it is being written
                raise
        except URLError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_commands_of_the_readme_run_as_written(tmp_path: Path, finished: tuple[Path, str]) -> None:
    (project := tmp_path / "project").mkdir()
    (project / "examples").symlink_to(ROOT / "examples")
    before, three = commands("Preparation"), tmp_path / "three"
    shell("\n".join(before[:4]), project)
    for table, rows in (("flats.csv", 1000), ("rentals.csv", 1000)):  # the example itself ran with all of them
        pl.read_csv(three / table).head(rows).write_csv(three / table)
    free_ports = (finished[0] / "job.toml").read_text()  # those of the page may be in use here
    (three / "job.toml").write_text(free_ports.replace("epochs = 8", "epochs = 1"))
    type_all(before[4:], three)
    watched = watch(three)
    terminals = [Terminal(command, three) for command in commands("Three terminals")]
    seen = scrape_until(watched, lambda: all(terminal.left for terminal in terminals))
    for terminal in terminals:
        terminal.left_well()
    every_role_is_seen(three, seen)
    predict_as_written(three, watched["city"])
    type_all(commands("Audit logs"), three)


def watch(three: Path) -> dict[str, str]:
    """Let every party be watched; gives where its metrics are."""
    names = ("notary", "city", "rentals")
    watched = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=True)}
    for name, address in watched.items():
        settings = f'\n[telemetry]\nmetrics = "{address}"\nlogs = "json"\n'
        with (three / f"{name}.toml").open("a") as file:
            file.write(settings)
    return watched


def scrape_until(watched: dict[str, str], over: Callable[[], bool]) -> dict[str, bytes]:
    """The last metrics of every party."""
    seen: dict[str, bytes] = {}
    while not over():
        seen |= {name: found for name, address in watched.items() if (found := scrape(address))}
        time.sleep(0.1)
    return seen


def every_role_is_seen(three: Path, seen: dict[str, bytes]) -> None:
    """Phases, steps, bytes and links in the metrics; JSON in the terminals."""
    roles = {"notary": "coordinator", "city": "primary", "rentals": "secondary"}
    for name, role in roles.items():
        ((_, party, as_role, _),) = values(seen[name], "fedsim_info")
        assert (party, as_role) == (name, role)
        assert sum(values(seen[name], "fedsim_phase").values()) == 1
    assert values(seen["city"], "fedsim_steps_total") == values(seen["rentals"], "fedsim_steps_total") != {}
    assert values(seen["city"], "fedsim_validation")["rmse",] > 0
    assert values(seen["notary"], "fedsim_linked_records") == values(seen["notary"], "fedsim_records_to_link") != {}
    assert values(seen["city"], "fedsim_linked_records") == {("rentals",): 1000}
    assert values(seen["city"], "fedsim_bytes_total")["sent", "gradients", "secondary"] > 0
    lines = [json.loads(line) for line in (three / "terminal.log").read_text().splitlines() if line.startswith("{")]
    assert {line["party"] for line in lines} == set(roles)
    assert ("city", "train", "epoch 1 of 1") in {(line["party"], line["phase"], line["message"]) for line in lines}
