"""The governance pack repeats what files say, and asks about the rest."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fedsim.cli import main
from fedsim.config.policy import audit_path
from fedsim.report.governance import PartyEvidence, data_flows, flow_picture, open_questions, write_governance
from fedsim.report.run_data import read_run
from fedsim.report.run_report import model_card
from fedsim.runs.approval import approval_path
from fedsim.runs.deletion import delete_rows
from fedsim.runs.run_folder import open_audit_log
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job
from run_fixtures import record_of, write_audit, write_run

SEALED = {"gradients": "none", "retention_days": 30}


@pytest.fixture
def place(tmp_path):
    """A job whose primary has a finished run and an audit of its own table."""
    place = create_local_job(tmp_path / "job", protection=SEALED)
    run = place.run(CITY)
    write_run(run, replace(record_of(), job=place.job.to_dict(), hash=place.job.hash))
    write_audit(run)
    report = json.loads((run / "audit.json").read_text()) | {"tables": ["primary 'city'", "secondary 'rentals'"]}
    for name in (CITY, RENTALS):
        path = audit_path(place.job, place.own(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))
    return place


def questions(place, *names):
    return list(open_questions(place.job, [PartyEvidence.read(place.job, place.own(name)) for name in names]))


def test_both_documents_have_every_section_and_the_same_words(place, tmp_path):
    delete_rows(place.job, place.own(CITY), RENTALS, "request", None, datetime(2026, 11, 1, tzinfo=UTC))
    files = [place.own(name) for name in (CITY, RENTALS)]
    markdown, page = (path.read_text() for path in write_governance(place.job, files, tmp_path))
    titles = re.findall(r"^## (.+)$", markdown, re.MULTILINE)
    assert re.findall(r"<h2>(.+?)</h2>", page) == titles
    assert len(titles) == 7
    for said in ("30 days", "its filter", "rows deleted", "5.5", "Risks to secondary", "10 messages"):
        assert said in markdown
        assert said in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_what_no_file_says_is_a_question(place):
    known = questions(place, NOTARY, CITY, RENTALS)
    approval_path(place.job, place.own(RENTALS)).unlink()
    audit_path(place.job, place.own(RENTALS)).unlink()
    new = set(questions(place, NOTARY, CITY, RENTALS)) - set(known)
    assert len(new) == 2
    assert all("rentals" in question for question in new)
    alone = set(questions(place, CITY)) - set(known)
    assert {question.split(":")[0] for question in alone} == {"coordinator 'notary'", "secondary 'rentals'"}


def test_a_damaged_log_is_reported_and_not_trusted(place):
    log = open_audit_log(place.own(RENTALS))
    log.append("approved", {"job": place.job.hash})
    log.path.write_bytes(log.path.read_bytes().replace(b"approved", b"declined"))
    found = PartyEvidence.read(place.job, place.own(RENTALS))
    assert (found.log, found.log_fault) == ([], "changed-line")


def test_every_flow_is_drawn(tmp_path):
    job = create_local_job(tmp_path / "two", n_secondaries=2).job
    assert flow_picture(job).count("<line") == len(data_flows(job)) == 12


def test_sealed_labels_show_in_the_flows(place):
    said = " ".join(what for _, _, what in data_flows(place.job))
    assert "gradients" not in said
    assert "embedding" in said


SHOWN = "at least 2 records", "leave its records out", "attacked under other noise"


def test_every_protection_of_the_job_and_every_note_of_the_audit_is_shown(tmp_path):
    terms = {"min_degree": 2, "explanations": False}
    place = create_local_job(tmp_path / "job", secondaries={RENTALS: terms})
    write_run(place.run(CITY), replace(record_of(), job=place.job.to_dict(), hash=place.job.hash))
    write_audit(place.run(CITY))
    path = audit_path(place.job, place.own(CITY))
    path.parent.mkdir(parents=True)
    facts = {"tables": ["primary 'city'"], "notes": ["attacked under other noise"]}
    path.write_text(json.dumps(json.loads((place.run(CITY) / "audit.json").read_text()) | facts))
    for written in write_governance(place.job, [place.own(CITY)], tmp_path):
        assert all(word in written.read_text() for word in SHOWN)
    card = model_card(read_run(place.run(CITY)))["privacy"]
    assert "at least 2 records" in card[RENTALS]


def test_the_policy_about_explanations_is_among_the_terms_of_its_owner(tmp_path):
    place = create_local_job(tmp_path / "job", secondaries={RENTALS: {"explanations": False}})
    words = json.loads((place.folder / f"{RENTALS}.json").read_text())
    place.write_party(RENTALS, words | {"policy": {"explanations": False}})
    written = write_governance(place.job, [place.own(RENTALS)], tmp_path)[0].read_text()
    assert "explanations = false" in written.replace("\\", "")


@pytest.mark.parametrize("beside", [(), (CITY,), (NOTARY, CITY, RENTALS)])
def test_the_job_is_enough_and_files_beside_it_are_read(place, tmp_path, beside, capsys):
    for name in {NOTARY, CITY, RENTALS} - set(beside):
        place.path(name).unlink()
    with pytest.raises(SystemExit) as ended:
        main(["privacy", "governance", str(place.job_path), "--out", str(tmp_path / "pack"), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["parties"] == [str(place.path(name)) for name in beside]
    written = (tmp_path / "pack" / "governance.md").read_text()
    assert written.count("its file was not given") == 3 - len(beside)


def test_the_command_names_what_it_wrote(place, tmp_path, capsys):
    out = tmp_path / "pack"
    with pytest.raises(SystemExit) as ended:
        main(["privacy", "governance", str(place.job_path), str(place.path(CITY)), "--out", str(out), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(out / f"governance.{kind}") for kind in ("md", "html")]
