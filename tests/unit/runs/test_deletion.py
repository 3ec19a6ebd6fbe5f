"""Activations that a primary stores under sealed labels are deleted, and its log says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.cli import main
from fedsim.cli.options import OutputMode
from fedsim.cli.results import run_delete, run_table_key
from fedsim.errors import SettingError
from fedsim.runs import run_folder
from fedsim.runs.run_folder import lock_run_folder, open_audit_log, read_audit_log, run_path
from fedsim.storage.tensor_file import load_tensors, save_tensors
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job

NOW = datetime(2100, 11, 1, tzinfo=UTC)


@pytest.fixture
def place(tmp_path):
    """A job under sealed labels whose primary stores three rows since ``NOW``."""
    place = create_local_job(tmp_path / "job", protection={"gradients": "none", "retention_days": 30})
    path = stored(place)
    path.parent.mkdir(parents=True)
    rows = {
        "pseudonym": np.arange(3, dtype=np.int32),
        "values": np.ones((3, 2), np.float32),
        "many_valued": np.arange(1),
    }
    save_tensors(path, run_folder.ROWS_FORMAT, rows, {"received": NOW.isoformat()})
    run_folder.released_path(path).touch()
    return place


def stored(place):
    return run_folder.rows_path(run_path(place.job, place.own(CITY)), RENTALS)


def n_rows(place):
    return len(load_tensors(stored(place), run_folder.ROWS_FORMAT)[0]["values"])


def deletions(place):
    entries = read_audit_log(open_audit_log(place.own(CITY)).path)
    return [(entry.what, entry.facts["rows"], entry.facts["reason"]) for entry in entries]


def command(place, *options):
    words = ["privacy", "delete", str(place.job_path), str(place.path(CITY)), *options, "--json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_rows_are_deleted_on_request_and_the_log_records_it(place, capsys):
    assert command(place) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == {}
    assert command(place, "--of", RENTALS) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": {RENTALS: 3}, "stored_until": {RENTALS: None}}
    assert n_rows(place) == 0
    assert not run_folder.released_path(stored(place)).exists()
    assert deletions(place) == [("rows deleted", 3, "request")]


def test_rows_are_deleted_when_their_retention_ends(place):
    own, job = place.own(CITY), place.job
    assert run_folder.stored_until(job, own, RENTALS) == NOW + timedelta(days=30)
    assert run_folder.delete_expired_rows(job, own, NOW + timedelta(days=29)) == {}
    assert run_folder.delete_expired_rows(job, own, NOW + timedelta(days=30)) == {RENTALS: 3}
    assert n_rows(place) == 0
    assert run_folder.stored_until(job, own, RENTALS) is None
    assert deletions(place) == [("rows deleted", 3, "retention")]


def test_nothing_is_deleted_while_the_party_runs(place, capsys):
    with lock_run_folder(place.job, place.own(CITY)):
        assert command(place, "--of", RENTALS) == 2
    assert "already running" in capsys.readouterr().err
    assert n_rows(place) == 3


def test_only_a_primary_under_sealed_labels_has_rows_to_delete(place, tmp_path):
    plain = create_local_job(tmp_path / "plain")
    for job, name in ((place, NOTARY), (place, RENTALS), (plain, CITY)):
        with raises(SettingError, "nothing-stored"):
            run_delete(job.job_path, job.path(name), [], OutputMode(quiet=True))
    with raises(SettingError, "unknown-party"):
        run_delete(place.job_path, place.path(CITY), ["schools"], OutputMode(quiet=True))


def test_the_owner_sees_rotates_and_destroys_the_key_of_a_table(tmp_path, capsys):
    place = create_local_job(tmp_path / "job", direct=True)
    path = str(place.path(RENTALS))

    def key(*options):
        with pytest.raises(SystemExit):
            main(["privacy", "key", path, *options, "--json"])
        return json.loads(capsys.readouterr().out)["keys"]

    first = key()
    assert len(first) == 1
    rotated = key("--rotate")
    assert rotated[0]["destroyed"] is not None
    assert key("--destroy")[1]["destroyed"] is not None
    assert len(key("--rotate")) == 3
    what = [entry.what for entry in read_audit_log(open_audit_log(place.own(RENTALS)).path)]
    assert what[-3:] == ["key rotated", "key destroyed", "key rotated"]
    with raises(SettingError, "not-a-secondary"):
        run_table_key(place.path(CITY), OutputMode(quiet=True), rotate=False, destroy=False)
