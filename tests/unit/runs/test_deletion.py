"""Activations that a primary stores under sealed labels are deleted, and both owners have it in their logs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.cli import main
from fedsim.cli.governance import run_delete
from fedsim.cli.options import OutputMode
from fedsim.config.job import Job
from fedsim.errors import FileError, SettingError
from fedsim.protocol.certificates import issue_certificates
from fedsim.runs import deletion
from fedsim.runs.approval import ApprovalError, require_approval
from fedsim.runs.run_folder import lock_run_folder, open_audit_log, read_audit_log, run_path
from fedsim.runtime.party_context import party_credentials
from fedsim.storage.tensor_file import load_tensors, save_tensors
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job

NOW = datetime(2026, 11, 1, tzinfo=UTC)


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
    save_tensors(path, deletion.ROWS_FORMAT, rows, {"received": NOW.isoformat()})
    deletion.released_path(path).touch()
    return place


def stored(place):
    return deletion.rows_path(run_path(place.job, place.own(CITY)), RENTALS)


def n_rows(place):
    return len(load_tensors(stored(place), deletion.ROWS_FORMAT)[0]["values"])


def events(place, name):
    entries = read_audit_log(open_audit_log(place.own(name)).path)
    return [(entry.what, entry.facts.get("rows")) for entry in entries]


def command(place, name, *files):
    words = ["privacy", "delete", str(place.job_path), str(place.path(name)), *map(str, files), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_a_request_is_carried_out_and_stands_in_both_logs(place, capsys):
    assert command(place, RENTALS) == 0
    request = json.loads(capsys.readouterr().out)["request"]
    assert n_rows(place) == 3
    with pytest.raises(ApprovalError):  # or the primary could ask for the same rows again
        require_approval(place.job, place.own(RENTALS))
    assert command(place, CITY, request) == 0
    deleted = json.loads(capsys.readouterr().out)["deleted"][0]
    assert (n_rows(place), deleted["rows"], deleted["reason"]) == (0, 3, "request")
    assert not deletion.released_path(stored(place)).exists()
    assert command(place, RENTALS, deleted["receipt"]) == 0
    assert json.loads(capsys.readouterr().out)["confirmed"]["signed"]
    assert events(place, CITY) == [("rows deleted", 3)]
    assert [what for what, _ in events(place, RENTALS)][:2] == ["deletion requested", "approval withdrawn"]
    assert events(place, RENTALS)[-1] == ("rows deleted by the primary", 3)


def test_rows_are_deleted_when_their_retention_ends(place):
    own, job = place.own(CITY), place.job
    assert deletion.stored_until(job, own, RENTALS) == NOW + timedelta(days=30)
    assert deletion.delete_expired_rows(job, own, None, NOW + timedelta(days=29)) == []
    (said, receipt), *_ = deletion.delete_expired_rows(job, own, None, NOW + timedelta(days=30))
    assert (said.rows, said.reason, n_rows(place)) == (3, "retention", 0)
    assert deletion.stored_until(job, own, RENTALS) is None
    assert deletion.record_receipt(receipt, job, place.own(RENTALS), None).rows == 3
    assert events(place, CITY) == [("rows deleted", 3)]


def test_a_request_must_be_signed_by_that_secondary(place, tmp_path):
    job, city, rentals = place.job, place.own(CITY), place.own(RENTALS)
    authority = city.tls.authority.read_bytes()
    unsigned = deletion.request_deletion(job, rentals, None, NOW)
    with raises(FileError, "unsigned-deletion"):
        deletion.read_deletion(unsigned, job, city, authority)
    forged = deletion.request_deletion(job, rentals, party_credentials(rentals), NOW)
    issue_certificates(tmp_path / "other", job.parties, NOW)
    with raises(FileError, "bad-receipt"):
        deletion.read_deletion(forged, job, city, (tmp_path / "other" / "ca.pem").read_bytes())
    changed = json.loads(forged.read_text())
    changed["statement"] = changed["statement"].replace('"rows": 0', '"rows": 7')
    forged.write_text(json.dumps(changed))
    with raises(FileError, "bad-receipt"):
        deletion.read_deletion(forged, job, city, authority)


def test_a_file_of_another_job_or_kind_is_refused(place):
    job, city, rentals = place.job, place.own(CITY), place.own(RENTALS)
    request = deletion.request_deletion(job, rentals, None, NOW)
    with raises(FileError, "other-deletion") as refused:
        deletion.read_deletion(request, job, rentals, None)  # the secondary expects a receipt
    assert refused.value.field == "what"
    other = Job.from_dict(job.to_dict() | {"seed": 5})
    with raises(FileError, "other-deletion") as refused:
        deletion.read_deletion(request, other, city, None)
    assert refused.value.field == "job"
    request.write_text("[]")
    with raises(FileError, "bad-receipt"):
        deletion.read_deletion(request, job, city, None)


def test_nothing_is_deleted_or_requested_while_the_party_runs(place, capsys):
    with lock_run_folder(place.job, place.own(CITY)):
        assert command(place, CITY) == 2
    assert "already running" in capsys.readouterr().err
    assert n_rows(place) == 3


def test_a_coordinator_and_a_job_without_sealed_labels_have_nothing_to_delete(place, tmp_path):
    plain = create_local_job(tmp_path / "plain")
    for job, name in ((place, NOTARY), (plain, CITY)):
        with raises(SettingError, "nothing-stored"):
            run_delete(job.job_path, job.path(name), None, OutputMode(quiet=True))
