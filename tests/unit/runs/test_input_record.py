"""A stored result whose inputs have changed is never shown as if it were theirs: the command says what changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedsim.cli import ExitCode, exit_code_for
from fedsim.cli.app import app
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import StaleResultError
from fedsim.linkage.encoding import Key
from fedsim.runs import input_record
from fedsim.runs.record import read_run_record
from fedsim.runs.run_folder import read_audit_log, run_path
from job_fixtures import PARTIES, change, lay_out, read_all

TRAIN = ["train", "job.toml", *(f"{name}.toml" for name in PARTIES)]
TUNE = ["tune", "job.toml", "city.toml", "rentals.toml", "--epochs", "1"]
TUNE += ["--try", "k=3", "--try", "learning_rate=0.01", "--try", "width=8"]
COMPARE = ["compare", "job.toml", "city.toml", "rentals.toml", "--epochs", "1", "--seeds", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained job."""
    folder = tmp_path_factory.mktemp("trained")
    lay_out(folder, flats=120)
    read_all(folder)
    before = Path.cwd()
    os.chdir(folder)
    assert run(*TRAIN, "--quiet").exit_code == ExitCode.DONE
    os.chdir(before)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, in which commands run."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    monkeypatch.chdir(copy)
    return copy


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def stale(*words: str) -> list[tuple[str, str]]:
    """The changes that a command reports, by kind and party; it must print no result."""
    done = run(*words)
    assert isinstance(done.exception, StaleResultError), done.output
    assert exit_code_for(done.exception) == 3
    assert done.exception.code == "inputs-changed"
    assert "--again" in str(done.exception)
    assert not any(word in done.stdout for word in ("rmse", "already trained"))
    return [(each.kind, each.party) for each in done.exception.changes]


def change_rents(name: str = "rentals.csv") -> None:
    """Another value in a column that is learnt from, in the last row."""
    path = Path(name)
    path.write_text(path.read_text().rstrip("\n") + "5\n")


def change_key() -> None:
    Path("linkage.key").unlink()
    Key(bytes([1]) * 32).write(Path("linkage.key"))


def test_a_table_that_changed_is_named_with_its_party(folder):
    change_rents()
    assert stale(*TRAIN) == [("table", "secondary 'rentals'")]


def test_a_key_that_changed_is_named_at_every_party_that_has_it(folder):
    change_key()
    assert stale(*TRAIN) == [("linkage key", "primary 'city'"), ("linkage key", "secondary 'rentals'")]


def test_a_setting_that_decides_how_the_table_is_read_is_named(folder):
    change(Path("rentals.toml"), '[data]\nfile = "rentals.csv"', '[data]\nfile = "rentals.csv"\nmissing = ["NA"]')
    done = run(*TRAIN)
    assert [(each.kind, each.what) for each in done.exception.changes] == [("party file", "data.missing in the file")]


def test_settings_that_change_no_result_are_not_mentioned(folder):
    change(Path("city.toml"), "certs/ca.pem", "other/ca.pem")
    shutil.move("rentals.csv", "moved.csv")
    change(Path("rentals.toml"), "rentals.csv", "moved.csv")
    assert run(*TRAIN, "--quiet").exit_code == ExitCode.DONE


def test_a_run_of_another_release_is_named(folder, monkeypatch):
    monkeypatch.setattr(input_record, "VERSION", "9.9")
    assert {kind for kind, _ in stale(*TRAIN)} == {"release"}


def test_a_run_whose_release_recorded_no_inputs_is_named(folder):
    job, own = read_job(Path("job.toml")), read_party_file(Path("city.toml"))
    (run_path(job, own) / input_record.INPUTS_FILE).unlink()
    assert stale(*TRAIN) == [("release", "primary 'city'")]


def test_a_table_that_was_only_written_again_is_not_read_as_changed(folder):
    os.utime("rentals.csv", (0, 0))
    done = run(*TRAIN)
    assert done.exit_code == ExitCode.DONE
    assert "already trained" in done.stdout


def test_again_trains_with_the_changed_table_and_then_the_result_is_of_that_table(folder):
    job, own = read_job(Path("job.toml")), read_party_file(Path("city.toml"))
    before = read_run_record(run_path(job, own))
    secret = bytes(range(32))
    (run_path(job, own) / "secret").write_bytes(secret)
    change_rents("flats.csv")
    assert run(*TRAIN, "--again").exit_code == ExitCode.DONE
    after = read_run_record(run_path(job, own))
    assert after.table.digest != before.table.digest
    assert after.metrics != before.metrics
    assert (run_path(job, own) / "secret").read_bytes() == secret  # the same cells get the same noise
    assert "run discarded" in [entry.what for entry in read_audit_log(own.folder / "audit.jsonl")]
    assert run(*TRAIN, "--quiet").exit_code == ExitCode.DONE


def test_training_again_is_another_job_of_the_secondarys_budget(folder):
    own = read_party_file(Path("rentals.toml"))
    spent = own.folder / "budgets" / "city" / "spent.json"
    before = json.loads(spent.read_text())["jobs"]
    assert run(*TRAIN, "--again", "--quiet").exit_code == ExitCode.DONE
    after = json.loads(spent.read_text())["jobs"]
    assert (len(after), sum(after.values())) == (len(before) + 1, 2 * sum(before.values()))


@pytest.mark.parametrize("name", ["city", "rentals"])
def test_a_party_names_its_own_changes_and_its_peers_learn_the_kind_only(folder, name, monkeypatch):
    monkeypatch.setattr("fedsim.runtime.party_context.FAILURE_NOTICE_SECONDS", 0.1)  # nobody is there
    change_rents("flats.csv" if name == "city" else "rentals.csv")
    role = "primary" if name == "city" else "secondary"
    assert stale("party", "job.toml", f"{name}.toml", "--insecure") == [("table", f"{role} '{name}'")]
    own = read_party_file(Path(f"{name}.toml"))
    (stopped,) = [entry.facts for entry in read_audit_log(own.folder / "audit.jsonl") if entry.what == "stopped"]
    assert stopped["sent_to_peers"] == "its table changed since this job was run"


@pytest.mark.parametrize("words", [TUNE, COMPARE], ids=["tune", "compare"])
def test_results_of_other_tables_are_not_continued(folder, words):
    assert run(*words, "--out", "results", "--quiet").exit_code == ExitCode.DONE
    lines = Path("results/results.jsonl").read_text()
    assert run(*words, "--out", "results", "--quiet").exit_code == ExitCode.DONE
    assert Path("results/results.jsonl").read_text() == lines  # nothing changed: nothing is trained twice
    change_rents()
    change_key()
    changed = [
        ("linkage key", "primary 'city'"),
        ("table", "secondary 'rentals'"),
        ("linkage key", "secondary 'rentals'"),
    ]
    assert stale(*words, "--out", "results") == changed
    assert Path("results/results.jsonl").read_text() == lines
    assert run(*words, "--out", "results", "--quiet", "--again").exit_code == ExitCode.DONE
    assert not set(Path("results/results.jsonl").read_text().splitlines()) & set(lines.splitlines())


def test_another_encoding_of_the_same_identifiers_is_encoded_anew_for_a_comparison(folder):
    assert run(*TUNE, "--out", "results", "--quiet").exit_code == ExitCode.DONE
    (before,) = Path("results/city/encoded").glob("*.safetensors")
    filters = before.read_bytes()
    change(Path("job.toml"), "threshold = 0.05", "threshold = 0.1")
    assert run(*TUNE, "--out", "results", "--quiet").exit_code == ExitCode.DONE
    assert before.read_bytes() != filters
