"""The owner's approval: of one job and one set of columns, and of nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from error_fixtures import raises
from fedsim.config.disclosure import describe_disclosure, summarise_settings
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file, resolve_columns
from fedsim.config.stored_audit import audit_path
from fedsim.errors import FedSimError, FileError
from fedsim.linkage.encoding import PlacePosition, Schema, SchemaField
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import read_credentials
from fedsim.runs.approval import (
    ApprovalError,
    approval_path,
    approve,
    find_approval,
    read_statement,
    require_approval,
    sign_statement,
)
from fedsim.runs.run_folder import run_path
from fedsim_ops.authority import issue_certificates, party_files

GOLDEN = Path(__file__).parents[2] / "golden"
HEADER = ["id", "latitude", "lon", "rooms", "rent"]
NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


def job_with(folder: Path, old: str = "", new: str = "") -> Job:
    path = folder / "job.toml"
    path.write_text((GOLDEN / "job.toml").read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return read_job(path)


def party_with(folder: Path, old: str = "", new: str = "", name: str = "rentals") -> PartyFile:
    path = folder / f"{name}.toml"
    path.write_text((GOLDEN / f"job_{name}.toml").read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return read_party_file(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder where the owner of the rentals has approved the job."""
    approve(job_with(tmp_path), party_with(tmp_path), HEADER, by="ada", time=NOON)
    return tmp_path


def test_what_was_approved_stays_approved(folder):
    job, rentals = job_with(folder), party_with(folder)
    assert require_approval(job, rentals) == "by ada at 2025-06-01T12:00:00+00:00, not signed"
    assert require_approval(job, rentals, HEADER) == require_approval(job, rentals)
    assert approval_path(job, rentals).stat().st_mode & 0o077 == 0


def test_nobody_approved_says_the_command_to_run(tmp_path):
    spaced = tmp_path / "my files"
    spaced.mkdir()
    with pytest.raises(ApprovalError) as caught:
        require_approval(job_with(spaced), party_with(spaced))
    assert caught.value.code == "not-approved"
    assert str(caught.value).endswith(f"fedsim approve '{spaced}/job.toml' '{spaced}/rentals.toml'")


def test_a_changed_job_needs_a_new_approval_and_the_change_is_named(folder):
    with pytest.raises(ApprovalError, match=r"job\.training\.epochs") as caught:
        require_approval(job_with(folder, "epochs = 40", "epochs = 41"), party_with(folder))
    assert caught.value.code == "job-changed"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('lat = "latitude"', 'lat = "rooms"'),
        ('drop = ["id"]', 'columns = ["rent"]'),
        ('drop = ["id"]', 'columns = ["rooms", "rent", "latitude"]'),
    ],
)
def test_changed_columns_need_a_new_approval(folder, old, new):
    with pytest.raises(ApprovalError) as caught:
        require_approval(job_with(folder), party_with(folder, old, new))
    assert caught.value.code == "columns-changed"


def test_a_column_added_to_the_table_needs_a_new_approval_where_the_file_names_none(folder):
    assert require_approval(job_with(folder), party_with(folder), [*reversed(HEADER)])
    with pytest.raises(ApprovalError) as caught:
        require_approval(job_with(folder), party_with(folder), [*HEADER, "tenant"])
    assert caught.value.code == "columns-changed"


def test_an_approval_is_of_one_party_only(folder):
    renamed = party_with(folder, 'name = "rentals"', 'name = "schools"').model_copy(update={"identifiers": {}})
    with pytest.raises(ApprovalError) as caught:
        require_approval(job_with(folder), renamed)
    assert caught.value.code == "approval-of-another"


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 9999, b"\xff", b'{"format": "fedsim approval 1", "job": 1}'])
def test_a_damaged_approval_counts_as_none(folder, content):
    job, rentals = job_with(folder), party_with(folder)
    approval_path(job, rentals).write_bytes(content)
    assert find_approval(job, rentals) is None
    with pytest.raises(ApprovalError):
        require_approval(job, rentals)


def test_the_policy_may_approve_by_hash(tmp_path):
    job = job_with(tmp_path)
    rentals = party_with(tmp_path, "[policy]", f'[policy]\napprove = ["{job.hash}"]')
    assert require_approval(job, rentals).startswith("by the policy")
    with pytest.raises(ApprovalError):
        require_approval(job_with(tmp_path, "seed = 7", "seed = 8"), rentals)


@pytest.mark.parametrize("digits", [12, 40, 63])
def test_the_first_digits_of_a_hash_approve_nothing(tmp_path, digits):
    with pytest.raises(FedSimError):
        party_with(tmp_path, "[policy]", f'[policy]\napprove = ["{job_with(tmp_path).hash[:digits]}"]')


def test_a_job_that_shares_the_first_digits_has_neither_its_approval_nor_its_folder(folder, monkeypatch):
    job, rentals = job_with(folder), party_with(folder)
    forged = job_with(folder, "seed = 7", "seed = 8")
    monkeypatch.setattr(Job, "hash", property(lambda self: "79d9811e6643" + f"{self.seed:052}"))
    assert job.short_hash == forged.short_hash
    for path_of in (approval_path, audit_path, run_path):
        assert path_of(job, rentals) != path_of(forged, rentals)


def disclosure(folder: Path, name: str) -> dict[str, str]:
    job, party_file = job_with(folder), party_with(folder, name=name)
    paragraphs = describe_disclosure(job, party_file, resolve_columns(job, party_file))
    return {paragraph.heading: " ".join(paragraph.sentences) for paragraph in paragraphs}


def test_a_secondary_reads_what_leaves_it_and_to_whom(tmp_path):
    text = disclosure(tmp_path, "rentals")
    assert "lat (own column latitude), lon" in text["to coordinator 'notary'"]
    assert "2,048 bits" in text["to coordinator 'notary'"]
    assert "activations" in text["to primary 'city'"]
    assert "features" in text["stays here"]


def test_a_primary_reads_that_gradients_can_reveal_labels(tmp_path):
    text = disclosure(tmp_path, "city")
    assert "labels" in text["to secondary 'schools'"]
    assert "tau 0.01" in text["receives"]
    assert "the label price" in text["stays here"]


@pytest.mark.parametrize("gradients", ["none", None], ids=["sealed", "beside the network"])
def test_a_primary_reads_that_it_receives_embeddings(tmp_path, gradients):
    job, own = job_with(tmp_path), party_with(tmp_path, name="city")
    assert "embedding" not in disclosure(tmp_path, "city")["receives"]
    protection = job.protection.model_copy(update={"embedding": "random", "gradients": gradients})
    sending = job.model_copy(update={"protection": protection})
    paragraphs = describe_disclosure(sending, own, resolve_columns(job, own))
    [received] = [" ".join(each.sentences) for each in paragraphs if each.heading == "receives"]
    assert "embedding 'random'" in received
    assert ("activations" in received) is (gradients is None)


def test_an_owner_reads_that_a_model_can_do_without_partners(tmp_path):
    job = job_with(tmp_path)
    assert "dropout" not in dict(summarise_settings(job))
    training = job.training.model_copy(update={"party_dropout": 0.2})
    assert dict(summarise_settings(job.model_copy(update={"training": training})))["dropout"].startswith("20 %")


def test_positions_are_not_called_filters(tmp_path):
    job, own = job_with(tmp_path), party_with(tmp_path, name="rentals")
    places = Schema([SchemaField("lat", PlacePosition(), longitude="lon")])
    terms = job.secondaries["rentals"].model_copy(update={"metric": "position", "filters": places})
    by_position = job.model_copy(update={"secondaries": {"rentals": terms}})
    sent = describe_disclosure(by_position, own, resolve_columns(job, own))[0].sentences[0]
    assert "positions" in sent
    assert "filters" not in sent


def test_a_coordinator_reads_that_it_holds_distances(tmp_path):
    text = disclosure(tmp_path, "notary")
    assert "50 rows of secondary 'rentals'" in text["to primary 'city'"]
    assert "distances" in text["stays here"]


# A statement counts only if the party that it names signed it

CITY, RENTALS = Party(Role.PRIMARY, "city"), Party(Role.SECONDARY, "rentals")
FACTS = {"party": str(RENTALS), "approval": "ab" * 32}


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    for place in (folder, folder / "other"):
        issue_certificates(place, [CITY, RENTALS], datetime.now(UTC))
    return folder


def credentials(folder, party):
    return read_credentials(folder / "ca.pem", *party_files(folder, party), party)


def test_a_signed_statement_has_its_facts(certs):
    signed = sign_statement(FACTS, credentials(certs, RENTALS))
    assert read_statement(signed, (certs / "ca.pem").read_bytes()) == FACTS
    assert read_statement(signed, None) == FACTS


def test_a_statement_that_its_party_did_not_sign_is_refused(certs):
    signed, authority = sign_statement(FACTS, credentials(certs, RENTALS)), (certs / "ca.pem").read_bytes()
    by_city = sign_statement(FACTS, credentials(certs, CITY))
    by_another_authority = sign_statement(FACTS, credentials(certs / "other", RENTALS))
    changed = signed | {"statement": signed["statement"].replace("ab", "cd")}
    unsigned = sign_statement(FACTS, None)
    for forged in (by_city, by_another_authority, changed, unsigned, signed | {"signature": ""}, [1], None):
        with raises(FileError, "not-signed"):
            read_statement(forged, authority)
