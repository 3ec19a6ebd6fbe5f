"""The secondary's encrypted table, handed over as a file: what the primary's run takes, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from error_fixtures import raises
from fedsim.errors import FileError, FingerprintError
from fedsim.linkage.direct.encrypted_table import EncryptedTable, read_owner
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.runs.approval import ApprovalError
from fedsim.runs.run_folder import open_audit_log, read_audit_log, table_path
from fedsim.runtime.linking import take_table
from fedsim.runtime.party_context import open_offline_context
from fedsim.runtime.run_local import run_local
from fedsim.runtime.secondary import write_table
from fedsim_lab.faults.local_job import CITY, RENTALS, SCHOOLS, LocalJob, create_local_job, small_tables


def run_here(place: LocalJob, **options) -> set[str]:
    """The kinds of all messages."""
    return {one.kind for one in run_local(place.job, [place.own(name) for name in place.names], **options).ledger}


def written(place: LocalJob, name: str = RENTALS) -> Path:
    path = place.folder / f"{name}.table"
    with open_offline_context(place.job, place.own(name)) as context:
        write_table(context, path)
    return path


def taken(place: LocalJob, path: Path) -> str:
    with open_offline_context(place.job, place.own(CITY)) as context:
        return take_table(context, path)


def events(place: LocalJob, name: str) -> list[str]:
    return [entry.what for entry in read_audit_log(open_audit_log(place.own(name)).path)]


@pytest.fixture
def place(tmp_path) -> LocalJob:
    return create_local_job(tmp_path / "job", direct=True)


def rotate(place: LocalJob) -> None:
    KeyStore(place.own(RENTALS).folder / "keys").rotate(RENTALS, datetime.now(UTC))


def test_a_job_with_tables_handed_over_learns_the_same_and_sends_none(tmp_path):
    sent, handed = (create_local_job(tmp_path / name, n_secondaries=2, direct=True) for name in ("sent", "handed"))
    for name in (RENTALS, SCHOOLS):
        assert taken(handed, written(handed, name)) == name
    run_here(sent)
    kinds = run_here(handed)
    assert handed.hashes() == sent.hashes()
    assert "evaluate" in kinds
    assert "table written" in events(handed, RENTALS)
    assert "table sent" not in events(handed, RENTALS)
    assert events(handed, CITY).count("table received") == 4  # taken, and found to be the present ones


def test_a_second_file_of_the_same_table_has_the_same_bytes(place):
    first = written(place)
    content = first.read_bytes()
    with raises(FileError, "already-exists"):
        written(place)
    first.unlink()
    assert written(place).read_bytes() == content
    assert first.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("change", ["key", "policy"])
def test_a_table_that_the_secondary_no_longer_has_is_refused_until_the_present_one_is_taken(place, change):
    taken(place, written(place))
    if change == "key":
        rotate(place)
    else:
        place.change_party(RENTALS, policy={"min_list_rows": 20})
    with raises(FingerprintError, "other-table"):
        run_here(place)
    (place.folder / f"{RENTALS}.table").unlink()
    taken(place, written(place))
    assert "evaluate" in run_here(place)


def test_a_run_that_starts_again_fetches_the_present_table(place):
    taken(place, written(place))
    rotate(place)
    with raises(FingerprintError, "other-table"):
        run_here(place)
    assert "table sent" not in events(place, RENTALS)
    run_here(place, again=True)
    assert "table sent" in events(place, RENTALS)


def test_a_trained_run_takes_the_table_of_its_training_only(place):
    path = written(place)
    run_here(place)
    assert taken(place, path) == RENTALS
    rotate(place)
    path.unlink()
    with raises(FingerprintError, "table-changed"):
        taken(place, written(place))


def test_truncated_changed_and_foreign_files_are_refused(place):
    path = written(place)
    content = path.read_bytes()
    for wrong in (b"", content[:7], content[:-1], content[: len(content) // 2], content + b"x", b"\0" * 500):
        path.write_bytes(wrong)
        with raises(FileError, "damaged-file"):
            taken(place, path)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with raises(FileError, "damaged-file"):
        taken(place, path)
    with raises(FileError, "not-readable"):
        taken(place, place.folder / "missing")
    assert not table_path(place.run(CITY), RENTALS).exists()


def test_files_of_another_job_or_party_are_refused(tmp_path, place):
    wider = {"secondaries": {RENTALS: {"tokens": [{"columns": ["lat", "lon"], "kind": "place", "metres": 500}]}}}
    other = create_local_job(tmp_path / "other", direct=True, **wider)
    with raises(FingerprintError, "schemas-differ"):
        taken(place, written(other))
    two = create_local_job(tmp_path / "two", n_secondaries=2, direct=True)
    with raises(FingerprintError, "other-table"):
        taken(place, written(two, SCHOOLS))


def test_a_file_of_a_release_with_other_tokens_is_refused(place, monkeypatch):
    path = written(place)
    monkeypatch.setattr("fedsim.linkage.direct.token_schema.TOKEN_VERSION", -1)
    with raises(FingerprintError, "schemas-differ"):
        taken(place, path)


def test_only_jobs_that_were_approved_are_written_to_a_file(place):
    place.job_path.write_text(place.job_path.read_text().replace("seed = 7", "seed = 8"))
    with raises(ApprovalError, "job-changed"):
        written(place)


def test_the_owner_sets_the_fewest_rows_of_a_token(tmp_path):
    tables = {**small_tables(), RENTALS: small_tables(rentals=400)[RENTALS]}
    all_, some = (create_local_job(tmp_path / name, tables=tables, direct=True) for name in ("all", "some"))
    some.change_party(RENTALS, policy={"min_list_rows": 20})
    schema = some.job.secondaries[RENTALS].token_schema
    whole, least = (EncryptedTable.load(written(one), schema) for one in (all_, some))
    assert len(least.tags[0]) < len(whole.tags[0])
    assert least.salt != whole.salt
    assert least.owner == read_owner(some.folder / f"{RENTALS}.table") == RENTALS
