"""The data protection document repeats what files say, and asks about the rest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedsim.cli import main
from fedsim.config.stored_audit import audit_path
from fedsim.report.run_data import read_run
from fedsim.report.run_report import model_card
from fedsim.runs.approval import approval_path
from fedsim_audit.governance import PartyEvidence, open_questions, write_governance
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job
from run_fixtures import record_of, write_audit, write_run

SEALED = {"gradients": "none", "retention_days": 30}


@pytest.fixture
def place(tmp_path):
    """A job whose primary has a finished run, and an audit of both tables."""
    return audited(create_local_job(tmp_path / "job", protection=SEALED), CITY, RENTALS)


def audited(place, *names, **facts):
    run = place.run(CITY)
    write_run(run, replace(record_of(), job=place.job.to_dict(), hash=place.job.hash))
    write_audit(run)
    tables = {"tables": ["primary 'city'", "secondary 'rentals'"]}
    report = json.loads((run / "audit.json").read_text()) | tables | facts
    for path in (audit_path(place.job, place.own(name)) for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))
    return place


def questions(place, *names):
    return list(open_questions(place.job, [PartyEvidence.read(place.job, place.own(name)) for name in names]))


def document(place, tmp_path, *names):
    path = tmp_path / "governance.md"
    write_governance(place.job, [place.own(name) for name in names], path)
    return path.read_text()


def test_the_document_has_retention_flows_and_risks(place, tmp_path):
    text = document(place, tmp_path, CITY, RENTALS)
    for words in ("30 days", "its filter", "Risks to secondary", "10 messages"):
        assert words in text


def test_what_no_file_says_is_a_question(place):
    known = questions(place, NOTARY, CITY, RENTALS)
    approval_path(place.job, place.own(RENTALS)).unlink()
    audit_path(place.job, place.own(RENTALS)).unlink()
    new = set(questions(place, NOTARY, CITY, RENTALS)) - set(known)
    assert len(new) == 2
    assert all("rentals" in question for question in new)
    alone = set(questions(place, CITY)) - set(known)
    assert {question.split(":")[0] for question in alone} == {"coordinator 'notary'", "secondary 'rentals'"}


def test_sealed_labels_show_in_what_leaves_each_party(place, tmp_path):
    text = document(place, tmp_path, CITY, RENTALS)
    assert "nothing that depends on a label" in text
    assert "every linked row once" in text
    assert "gradients of" not in text


def test_every_protection_of_the_job_and_every_note_of_the_audit_is_shown(tmp_path):
    terms = {RENTALS: {"blur": {"latitude": "lat", "longitude": "lon", "epsilon_per_km": 5}}}
    place = audited(create_local_job(tmp_path / "job", secondaries=terms), CITY, notes=["attacked under other noise"])
    text = document(place, tmp_path, CITY)
    for words in ("displaced", "attacked under other noise"):
        assert words in text
    assert "blurred" in model_card(read_run(place.run(CITY)))


@pytest.mark.parametrize("beside", [(), (CITY,), (NOTARY, CITY, RENTALS)])
def test_the_job_is_enough_and_files_beside_it_are_read(place, tmp_path, beside, capsys):
    for name in {NOTARY, CITY, RENTALS} - set(beside):
        place.path(name).unlink()
    out = tmp_path / "pack.md"
    with pytest.raises(SystemExit) as ended:
        main(["privacy", "governance", str(place.job_path), "--out", str(out), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(out),
        "parties": [str(place.path(name)) for name in beside],
    }
    assert out.read_text().count("its file was not given") == 3 - len(beside)
