"""A party as a process stops when it is told to, and says where its results are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from error_fixtures import raises
from fedsim.cli import ExitCode, main
from fedsim.cli.app import app
from fedsim.cli.options import OutputMode
from fedsim.cli.party import measure_traffic, run_party
from fedsim.errors import FedSimError, FileError, SettingError
from fedsim.runs.run_folder import run_path
from fedsim_lab.faults.local_job import CITY, RENTALS, create_local_job
from job_fixtures import fill, lay_out, read_all

PLAIN = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PY_COLORS", "NO_COLOR")}


FEDSIM = [sys.executable, "-m", "fedsim"]


def test_ctrl_c_ends_a_waiting_party_with_130(tmp_path):
    fill(tmp_path)
    words = [*FEDSIM, "party", "job.toml", "notary.toml"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=PLAIN) as party:
        assert party.stderr.readline()
        party.send_signal(signal.SIGINT)
        rest = party.stderr.read().decode()
    assert party.returncode == ExitCode.STOPPED
    assert "Traceback" not in rest


def test_the_primary_cannot_stay_after_training(tmp_path):
    fill(tmp_path)
    refused = CliRunner().invoke(app, ["party", str(tmp_path / "job.toml"), str(tmp_path / "city.toml"), "--stay"])
    assert isinstance(refused.exception, FedSimError)
    assert refused.exception.code == "stay-at-primary"


def test_a_command_gives_the_signals_of_its_process_back():
    before = signal.getsignal(signal.SIGINT)
    with measure_traffic(quiet=True):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def test_a_training_tells_programs_where_run_and_report_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    words = ["train", str(tmp_path / "job.toml"), *(str(tmp_path / f"{name}.toml") for name in files)]
    assert run(*words, "--quiet", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert Path(found["folder"]) == run_path(job, files["city"])
    assert Path(found["report"]).is_file()


def test_a_secondary_writes_its_table_to_a_file_and_exits(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    file = tmp_path / "rentals.table"
    words = ["party", str(place.job_path), str(place.path(RENTALS)), "--table", str(file), "--json"]
    wrote = json.loads(CliRunner().invoke(app, words).stdout)
    assert wrote["bytes"] == file.stat().st_size
    assert wrote["file"] == str(file)


def test_a_primary_refuses_a_wrong_table_before_it_connects(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    (tmp_path / "wrong").write_bytes(b"no table")
    with raises(FileError, "damaged-file"):
        run_party(place.job_path, place.path(CITY), OutputMode(quiet=True), insecure=True, table=tmp_path / "wrong")


def test_a_job_with_a_coordinator_has_no_table_to_hand_over(tmp_path):
    place = create_local_job(tmp_path / "job")
    with raises(SettingError, "not-direct"):
        run_party(place.job_path, place.path(RENTALS), OutputMode(), insecure=True, table=tmp_path / "table")
