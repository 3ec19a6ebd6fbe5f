"""Secondaries whose rows correspond one to one: one of them is linked, and all answer for its rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import safetensors.numpy

from e2e.party_threads import run_in_threads
from error_fixtures import raises
from fedsim.config.disclosure import describe_disclosure
from fedsim.config.party_file import resolve_columns
from fedsim.config.policy import policy_violations
from fedsim.contribution.job_ladder import JobCases
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.errors import PolicyError, SettingError, StaleResultError
from fedsim.preflight import NetworkLink
from fedsim.preflight.check import check_aligned
from fedsim.preflight.estimate import build_workload, estimate_cost
from fedsim.protocol.transport import InProcessTransport
from fedsim.report.governance import data_flows
from fedsim.report.run_data import read_run
from fedsim.report.run_report import write_report
from fedsim.runs.record import read_run_record, read_test_predictions
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predict import Predictor
from fedsim.runtime.run_local import run_local
from fedsim.runtime.secondary import run_secondary
from fedsim_audit.audit_report import AuditSettings
from fedsim_audit.audit_run import audit_job, read_audit_tables
from fedsim_lab.faults.local_job import (
    CITY,
    NOTARY,
    RENTALS,
    SCHOOLS,
    LocalJob,
    create_local_job,
    moved,
    small_tables,
)
from fedsim_ops.onnx_export import PrimaryNetwork
from job_fixtures import staying
from session_fixtures import PATIENCE

ALIGNED = {SCHOOLS: {"aligned_with": RENTALS}}
STACKED = {"method": "stacked", "party_dropout": 0.2, "wire": "float32"}


def aligned_job(folder: Path, *, schools: int = 90, **changes) -> LocalJob:
    """The rentals of a city in two parties: one has the places, the other the rents and no key."""
    tables = small_tables()
    rentals = tables[RENTALS]
    apart = {CITY: tables[CITY], RENTALS: rentals.drop("rent"), SCHOOLS: rentals.select("rent").head(schools)}
    place = create_local_job(folder, tables=apart, secondaries=ALIGNED, **changes)
    words = json.loads((place.folder / f"{SCHOOLS}.json").read_text())
    place.write_party(SCHOOLS, {name: value for name, value in words.items() if name != "linkage"})
    return place


def files_of(place: LocalJob) -> list:
    return [place.own(name) for name in place.names]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> LocalJob:
    """A trained job with trees that see embeddings of both parties."""
    place = aligned_job(
        tmp_path_factory.mktemp("aligned") / "job", training=STACKED, protection={"embedding": "random"}
    )
    run_local(place.job, files_of(place))
    return place


def order_of(place: LocalJob, name: str) -> list[int]:
    return safetensors.numpy.load((place.run(name) / "order.safetensors").read_bytes())["rows"].tolist()


def test_they_train_over_the_network_as_in_one_process_and_only_one_sends_identifiers(tmp_path):
    here = aligned_job(tmp_path / "here")
    there = moved(here, tmp_path / "there")
    run_local(here.job, files_of(here))
    ledgers = run_in_threads(there)
    assert there.hashes() == here.hashes()
    assert order_of(there, SCHOOLS) == order_of(there, RENTALS)
    sent = {name: {entry.kind for entry in ledgers[name] if name in entry.sender} for name in (RENTALS, SCHOOLS)}
    assert "candidates" in sent[RENTALS]
    assert "candidates" not in sent[SCHOOLS]
    assert not list(there.run(SCHOOLS).glob("encoded/*"))


def test_the_record_and_the_report_have_one_list_of_both(trained):
    record = read_run_record(trained.run(CITY))
    assert [one.secondary for one in record.lists] == [RENTALS]
    assert {one.secondary for example in record.explained for one in example.explanation.partners} == {
        f"{RENTALS} and {SCHOOLS}"
    }
    assert [one.away for one in record.absence] == [None, f"{RENTALS} and {SCHOOLS}"]
    assert record.trees.partners in ([], [RENTALS, SCHOOLS])
    assert "rentals and schools" in write_report(trained.run(CITY)).read_text()
    assert read_run(trained.run(CITY)).job.holders(RENTALS) == (RENTALS, SCHOOLS)


def test_new_records_are_predicted_with_both_or_with_neither(trained, tmp_path):
    place = moved(trained, tmp_path / "moved")
    place.change_party(CITY, serving={"when_partner_is_away": "others"})
    transport, test = InProcessTransport(), read_test_predictions(place.run(CITY))
    records = infer_numbers(read_table(place.folder / f"{CITY}.csv")).drop("price")[test["row"].to_list()]
    with (
        staying(place.job, place.own(NOTARY), transport),
        staying(place.job, place.own(RENTALS), transport),
        open_party_context(place.job, place.own(CITY), transport, software_versions()) as context,
    ):
        predictor = Predictor(context, wait_seconds=PATIENCE)
        with staying(place.job, place.own(SCHOOLS), transport):
            found = predictor.predict(records)
        assert found.values == pytest.approx(test["predicted"].to_list(), rel=1e-5)
        assert found.away == ()
        context.connection.wait_seconds = 0.2
        alone = predictor.predict(records)
        assert alone.away == (SCHOOLS,)
        assert alone.values != pytest.approx(found.values, rel=1e-3)


def test_another_number_of_rows_is_refused_before_training(tmp_path):
    place = aligned_job(tmp_path / "job", schools=89)
    with pytest.raises(PolicyError) as refused:
        run_local(place.job, files_of(place))
    assert (refused.value.code, refused.value.limit) == ("aligned-sizes", 90)
    (finding,) = check_aligned(place.job, {RENTALS: 90, SCHOOLS: 89})
    assert finding.code == "aligned-sizes"
    assert [one.code for one in check_aligned(place.job, {RENTALS: 90, SCHOOLS: 90})] == [""]


def test_a_table_that_has_changed_since_training_answers_nobody(trained, tmp_path):
    place = moved(trained, tmp_path / "moved")
    path = place.folder / f"{SCHOOLS}.csv"
    pl.read_csv(path).reverse().write_csv(path)
    transport = InProcessTransport()
    with (
        staying(place.job, place.own(NOTARY), transport),
        raises(StaleResultError, "inputs-changed"),
        open_party_context(place.job, place.own(SCHOOLS), transport, software_versions()) as context,
    ):
        run_secondary(context, stay=True)


def test_what_does_not_support_them_says_so(trained):
    job, files = trained.job, files_of(trained)
    with pytest.raises(SettingError) as compared:
        JobCases.read(job, files, trained.folder / "compare")
    with pytest.raises(SettingError) as exported:
        PrimaryNetwork.load(trained.run(CITY))
    with pytest.raises(SettingError) as audited:
        audit_job(job, [trained.own(SCHOOLS)], AuditSettings())
    codes = [one.value.code for one in (compared, exported, audited)]
    assert codes == ["aligned-not-compared", "aligned-not-exported", "aligned-not-audited"]


def test_an_audit_of_the_others_leaves_it_out_and_says_so(trained):
    tables = read_audit_tables(trained.job, files_of(trained), 1000, np.random.default_rng(0))
    assert list(tables.secondaries) == [RENTALS]
    assert any(SCHOOLS in note for note in tables.notes)


def test_its_owner_reads_that_nothing_checks_the_order_and_needs_no_key(trained):
    own, job = trained.own(SCHOOLS), trained.job
    assert own.linkage is None
    columns = resolve_columns(job, own, ["rent"])
    assert (columns.linking, columns.features) == ((), ("rent",))
    disclosure = {one.heading: " ".join(one.sentences) for one in describe_disclosure(job, own, columns)}
    assert "order" in disclosure["rows"]
    assert "identifiers" not in disclosure["to coordinator 'notary'"]
    leader = trained.own(RENTALS)
    disclosures = describe_disclosure(job, leader, resolve_columns(job, leader))
    assert any(SCHOOLS in sentence for one in disclosures for sentence in one.sentences)
    sent = [(str(sender.name), str(receiver.name)) for sender, receiver, _ in data_flows(job)]
    assert (SCHOOLS, NOTARY) not in sent
    assert (RENTALS, NOTARY) in sent


def test_policies_about_the_linkage_hold_for_it_and_its_links_cost_nothing(trained, tmp_path):
    place = moved(trained, tmp_path / "moved")
    place.change_party(SCHOOLS, policy={"max_k": 4, "audit": {"limit": 0.3}})
    rules = [one.rule for one in policy_violations(place.job, place.own(SCHOOLS))]
    assert rules == ["max_k", "audit"]  # no audit attacks it
    work = build_workload(trained.job, {CITY: 120, RENTALS: 90, SCHOOLS: 90}, {})
    leader, follower = work.lists
    assert (leader.aligned, follower.aligned) == (False, True)
    assert estimate_cost(trained.job, work, NetworkLink()).filter_bytes == (120 + 90) * leader.filter_bytes


def test_a_linked_secondary_without_a_key_is_refused(trained, tmp_path):
    place = moved(trained, tmp_path / "moved")
    words = json.loads((place.folder / f"{RENTALS}.json").read_text())
    place.write_party(RENTALS, {name: value for name, value in words.items() if name != "linkage"})
    with raises(SettingError, "no-linkage-key"):
        resolve_columns(place.job, place.own(RENTALS))
