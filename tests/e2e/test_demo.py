"""The demo runs two real processes to the answer, says it briefly, and fails loudly."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from browser import browser_page, needs_browser
from fedsim.cli import ExitCode, main
from fedsim.config import read_job
from fedsim.report.formatting import format_number
from fedsim.report.run_data import read_ladder
from fedsim.runs.record import read_run_record
from session_fixtures import PATIENCE, until

MOST_LINES = 50
FLATS, EPOCHS, ROUNDS = 320, 3, 20  # of the city, the networks, and the trees of the comparison


def shorten(demo: pytest.MonkeyPatch) -> None:
    """Run demos with a smaller city and less training; the commands and processes are those of a whole one."""
    demo.setattr("fedsim.cli.demo.FLATS", FLATS)
    demo.setattr("fedsim.cli.demo.EPOCHS", EPOCHS)
    demo.setattr("fedsim.training.boosted_trees.ROUNDS", ROUNDS)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A shorter demo, over an earlier demo: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / ".fedsim-demo").touch()
    (folder / "old.csv").touch()
    with pytest.MonkeyPatch.context() as smaller, pytest.MonkeyPatch.context() as printed:
        lines: list[str] = []
        shorten(smaller)
        printed.setattr("fedsim.cli.demo.print_lines", lines.extend)
        assert run("demo", "--out", str(folder)) == 0
    return folder, lines


def test_every_phase_has_its_line_with_seconds_and_bytes(shown: tuple[Path, list[str]]) -> None:
    _, lines = shown
    assert len(lines) <= MOST_LINES
    phases = [line.split()[0] for line in lines if re.match(r"  (tables|setup|start|link|train|compare) ", line)]
    assert phases == ["tables", "setup", "start", "link", "train", "compare"]
    assert re.search(r"\(.* m?s, [\d.]+ [kM]B\)", next(line for line in lines if line.startswith("  link ")))


def test_it_says_who_saw_what_the_worth_and_the_truth(shown: tuple[Path, list[str]]) -> None:
    folder, lines = shown
    output = " ".join(" ".join(lines).split())
    (ladder,) = folder.glob("city-run/city-*/ladder.json")
    assert json.loads(ladder.read_text())["worth"] in output
    assert "the best possible models with and without rentals differ by" in output
    assert "an encrypted table" in output
    assert "blinded tokens" in output
    assert f"report: {folder / 'report.html'}" in output
    assert (folder / "report.html").samefile(next(folder.glob("city-run/city-*/report.html")))
    assert not (folder / "old.csv").exists()


def test_model_ladder_and_headline_are_the_same_job(shown: tuple[Path, list[str]]) -> None:
    folder, lines = shown
    (run_folder,) = folder.glob("city-run/city-*")
    record, ladder = read_run_record(run_folder), read_ladder(run_folder)
    score, output = format_number(record.metrics["test"]["rmse"]), " ".join(" ".join(lines).split())
    assert f"test RMSE {score} thousand S$" in output
    assert ladder is not None
    assert (ladder.hash, ladder.records) == (record.hash, record.table.test)
    (model,) = (rung for rung in ladder.rungs if rung.key == record.method)
    assert model.mean == pytest.approx(record.metrics["test"]["rmse"])
    assert json.loads((run_folder / "ladder.json").read_text())["chosen"]["together"] == [record.method]
    assert f"to {model.mean:.4g} (random split)" in output


def test_its_job_is_what_init_proposes_for_its_tables(shown: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = shown
    tables = "--primary", str(folder / "city.csv"), "--secondary", str(folder / "rentals.csv")
    assert run("init", *tables, "--k", "8", "--epochs", str(EPOCHS), "--yes", "--quiet", "--out", str(tmp_path)) == 0
    proposed, ours = read_job(tmp_path / "job.toml"), read_job(folder / "job.toml")
    assert ours.seed == 7
    quick = {"batch_size": ours.training.batch_size, "patience": ours.training.patience}
    training = proposed.training.model_copy(update=quick)
    assert ours.hash == proposed.model_copy(update={"training": training, "seed": 7}).hash
    assert (folder / "city.toml").read_text().split("[features]")[1] == (tmp_path / "city.toml").read_text().split(
        "[features]"
    )[1]


def test_lines_fit_80_columns_and_the_last_five_name_the_next_steps(shown: tuple[Path, list[str]]) -> None:
    folder, lines = shown
    assert [line for line in lines if len(line) > 80 and str(folder) not in line] == []
    assert not any("\r" in line or "\x1b" in line for line in lines)
    phases = [line for line in lines if re.match(r"  (tables|setup|start|link|train|compare) ", line)]
    slow = [re.sub(r"\([\w. ]+(?=[,)])", "(1 min 59 s", line) for line in phases]
    assert all("(1 min 59 s" in line for line in slow)  # a line that is wrapped ends without its time
    assert max(map(len, slow)) <= 80
    steps = " ".join(lines[lines.index(next(line for line in lines if "Next steps" in line)) :])
    assert all(word in steps for word in ("report.html", "fedsim init", "fedsim check", "fedsim train"))
    assert "Next steps" in lines[-5]


def test_two_processes_ran_with_certificates_and_no_shared_key(shown: tuple[Path, list[str]]) -> None:
    folder, _ = shown
    numbers = {json.loads(path.read_text())["process"] for path in folder.glob("*-run/city-*/progress.json")}
    assert len(numbers) == 2
    assert (folder / "certs" / "ca.pem").is_file()
    assert not (folder / "linkage.key").exists()


@needs_browser
def test_its_report_opens_without_a_complaint(shown: tuple[Path, list[str]]) -> None:
    page = browser_page(next(shown[0].glob("city-run/city-*/report.html")), 400)
    assert (page.errors, page.requests, page.overflows) == ([], [], False), page.screenshot
    assert "What the partner adds" in page.text


def test_programs_get_the_same_figures_from_a_second_demo_and_nothing_else(
    shown: tuple[Path, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten(monkeypatch)
    assert run("demo", "--out", str(tmp_path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert Path(found["report"]).is_file()
    (first,) = shown[0].glob("city-run/city-*")
    assert found["metrics"] == read_run_record(first).metrics
    assert found["ladder"]["worth"] == json.loads((first / "ladder.json").read_text())["worth"]
    assert found["truth"] > 10


def test_a_party_that_refuses_fails_the_demo_and_stops_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.cli.demo.FLATS", 120)
    monkeypatch.setattr("fedsim.cli.demo.approve", lambda *_, **__: None)
    assert run("demo", "--out", str(tmp_path / "new" / "folder"), "--quiet") != 0
    output = capsys.readouterr()
    assert output.out == ""
    assert " failed: " in output.err
    assert "Traceback" not in output.err


def test_a_demo_that_is_stopped_leaves_no_process_behind(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fedsim", "demo", "--quiet", "--out", str(tmp_path / "demo")]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as shown:
        parties = _children_of(shown.pid)
        shown.terminate()
        assert shown.wait(PATIENCE) == ExitCode.STOPPED
    assert len(parties) == 2
    assert not [number for number in parties if Path(f"/proc/{number}").exists()]


def test_a_signal_that_arrives_while_a_party_is_being_started_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *words: object, **settings: object) -> None:
            super().__init__(*words, **settings)  # type: ignore[call-overload]
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    shorten(monkeypatch)
    monkeypatch.setattr("fedsim.cli.demo.subprocess.Popen", Interrupted)
    assert run("demo", "--quiet", "--out", str(tmp_path / "demo")) == ExitCode.STOPPED
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


def _children_of(number: int) -> list[str]:
    """Both parties, as soon as they run."""
    listed = Path(f"/proc/{number}/task/{number}/children")
    until(lambda: len(listed.read_text().split()) == 2)
    return listed.read_text().split()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert run("demo", "--out", str(tmp_path)) == 2
    assert "contains no demo" in capsys.readouterr().err
    assert run("demo", "--out", str(tmp_path / "thesis.txt" / "below")) == 2
    assert "cannot create the folder" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "mine"
