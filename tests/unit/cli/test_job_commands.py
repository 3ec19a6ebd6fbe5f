"""The command ``fedsim check``: its output, its speed and its exit status."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from fedsim.cli.job_commands import check
from fedsim.config.job import read_job
from fedsim.config.toml_file import FILL_IN_MARK
from job_fixtures import PARTIES, approve_now, change, fill

FILES = [f"{name}.toml" for name in PARTIES]


@pytest.fixture(autouse=True)
def _ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    change(tmp_path / "job.toml", "batch_size = 256", "batch_size = 2")  # enough steps for so few records
    for name in PARTIES:
        approve_now(tmp_path, name)
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> Result:
    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, ["job.toml", *words])


def findings_of(*words: str) -> list[dict[str, str]]:
    return [each for section in json.loads(run(*words, "--json").output)["sections"] for each in section["findings"]]


def test_all_parties_of_a_job_that_is_ready_fit_on_one_page():
    done = run(*FILES)
    assert done.exit_code == 0
    assert len(done.output.splitlines()) <= 42
    assert "\x1b" not in done.output
    assert all(line == line.rstrip() for line in done.output.splitlines())


def test_what_fails_is_told_with_the_way_out_and_ends_with_two():
    change(Path("rentals.csv"), "lat,lon", "lat,long")
    done = run("rentals.toml")
    assert done.exit_code == 2
    assert '"long"' in done.output
    (failed,) = (each for each in findings_of("rentals.toml") if each["level"] != "ok")
    assert (failed["level"], failed["code"]) == ("fails", "missing-column")


def test_warnings_alone_end_with_nought():
    Path("rentals-run").chmod(0o777)
    assert run("rentals.toml").exit_code == 0
    assert [each["level"] for each in findings_of("rentals.toml") if each["level"] != "ok"] == ["warning"]


def test_nothing_is_estimated_from_a_party_file_that_cannot_be_read():
    assert json.loads(run("city.toml", "rentals.toml", "--json").output)["estimate"]
    change(Path("city.toml"), "[linkage]\nkey =", "[linkage]\nkee =")
    assert json.loads(run("city.toml", "rentals.toml", "--json").output)["estimate"] is None
    assert run("city.toml", "rentals.toml").output.count("linkage.ke") == 2  # where it belongs, and at the end


def test_failures_come_last_and_training_in_one_process_needs_no_certificate():
    Path("certs/ca.pem").unlink()
    done = run("rentals.toml")
    assert done.exit_code == 2
    assert "certs/ca.pem" in "".join(done.output.splitlines()[-6:])
    assert json.loads(run("rentals.toml", "--json").output)["ready_to_train"] is True
    Path("rentals.csv").unlink()
    assert json.loads(run("rentals.toml", "--json").output)["ready_to_train"] is False


def test_certificates_that_only_separate_machines_need_do_not_count_as_failed():
    shutil.rmtree("certs")
    closing = run(*FILES).output.splitlines()[-1]
    assert closing.startswith("ready for `fedsim train`")
    assert "9 checks (certificate)" in closing
    Path("rentals.csv").unlink()
    assert run(*FILES).output.splitlines()[-1].startswith("1 check failed")


def test_a_missing_approval_is_printed_once_with_a_short_hash():
    job = read_job(Path("job.toml"))
    shutil.rmtree("city-run")
    shown = run("city.toml").output
    assert (shown.count("fedsim approve"), shown.count(job.hash)) == (1, 0)
    assert (run("city.toml", "--verbose").output.count("fedsim approve"), job.short_hash in shown) == (2, True)


def test_lines_that_nobody_has_filled_in_fail():
    change(Path("job.toml"), "epochs", f"# {FILL_IN_MARK} how long\nepochs")
    (found,) = [finding for finding in findings_of() if finding["level"] == "fails"]
    assert (found["check"], "line 20" in found["result"]) == ("job file", True)


def test_verbose_tells_every_check():
    done = run("city.toml", "--verbose")
    assert {"approval", "running", "disk"} <= {line.split()[0] for line in done.output.splitlines() if line.strip()}


def test_quiet_prints_errors_and_nothing_else():
    assert run(*FILES, "--quiet").output == ""
    change(Path("job.toml"), "epochs", "epoch")
    done = run("--quiet")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert all(part in done.stderr for part in ("job.toml", "line 20", "'training.epoch'"))
    assert len(done.stderr.splitlines()) == 1


def test_programs_get_one_object():
    result = json.loads(run(*FILES, "--json", "--quiet").output)
    assert result["passed"] is True
    assert {finding["level"] for section in result["sections"] for finding in section["findings"]} == {"ok"}
    assert result["estimate"]["disk"].keys() == set(PARTIES)
    assert result["estimate"]["epoch_bytes"]["least"] < result["estimate"]["epoch_bytes"]["expected"]


def test_a_slower_line_takes_longer_and_the_page_says_for_which_line():
    slow = run(*FILES, "--mbit", "1", "--ping-ms", "300").output
    assert all(part in slow for part in ("1 Mbit/s", "300 ms"))
    result = [json.loads(run("--json", "--mbit", speed).output)["estimate"] for speed in ("1", "100")]
    assert result[0]["training_seconds"]["expected"] > 3 * result[1]["training_seconds"]["expected"]


def test_numbers_that_had_to_be_assumed_are_named():
    (line,) = (line for line in run("city.toml").output.splitlines() if line.strip().startswith("assumed"))
    assert all(part in line for part in ("120", "rentals"))


def test_a_file_that_is_not_there_is_a_finding():
    done = run("nobody.toml")
    assert done.exit_code == 2
    assert "nobody.toml" in done.output


def test_names_cannot_steer_a_terminal():
    done = run("no\x1b[31mbody.toml")
    assert "\x1b" not in done.output


PROGRAM = """
import sys
from fedsim.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    heavy = {"torch", "numba", "sklearn", "pandas", "scipy"} & set(sys.modules)
    print(f"heavy: {sorted(heavy)}, code: {end.code}")
"""


def test_the_check_loads_nothing_heavy():
    words = [sys.executable, "-c", PROGRAM, "check", "job.toml", *FILES]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "heavy: [], code: 0"
