"""The run folder: private, and used by one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsim.config.job import read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.errors import FileError
from fedsim.runs.run_folder import AlreadyRunningError, lock_run_folder, run_path

GOLDEN = Path(__file__).parents[2] / "golden"
JOB = read_job(GOLDEN / "job.toml")


@pytest.fixture
def rentals(tmp_path: Path) -> PartyFile:
    path = tmp_path / "rentals.toml"
    path.write_text((GOLDEN / "job_rentals.toml").read_text(encoding="utf-8"), encoding="utf-8")
    return read_party_file(path)


def test_the_folder_is_named_after_the_exact_job_and_private(rentals):
    with lock_run_folder(JOB, rentals) as folder:
        assert folder == rentals.folder / f"flats-{JOB.hash}" == run_path(JOB, rentals)
        assert (folder.stat().st_mode | rentals.folder.stat().st_mode) & 0o077 == 0


def test_a_second_process_is_refused_and_the_first_one_is_named(rentals):
    with lock_run_folder(JOB, rentals):
        with pytest.raises(AlreadyRunningError) as caught, lock_run_folder(JOB, rentals):
            pass
        assert caught.value.code == "already-running"
        assert f"process {os.getpid()}" in str(caught.value)
    with lock_run_folder(JOB, rentals):
        pass


def test_a_killed_process_leaves_no_lock(rentals):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from fedsim.config.job import read_job; from fedsim.config.party_file import read_party_file\n"
        "from fedsim.runs.run_folder import lock_run_folder\n"
        "with lock_run_folder(read_job(Path(sys.argv[1])), read_party_file(Path(sys.argv[2]))):\n"
        "    print('locked', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, GOLDEN / "job.toml", rentals.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "locked\n"
        with pytest.raises(AlreadyRunningError, match=f"process {running.pid}"), lock_run_folder(JOB, rentals):
            pass
        running.kill()
    with lock_run_folder(JOB, rentals):
        pass


def test_a_folder_that_cannot_be_created_is_an_error(rentals):
    rentals.folder.write_text("in the way")
    with pytest.raises(FileError) as caught, lock_run_folder(JOB, rentals):
        pass
    assert caught.value.code == "no-folder"
