"""``fedsim init --secondary`` beside a received job, and tables that were given the wrong way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from error_fixtures import raises
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file, resolve_columns
from fedsim.errors import FileError, InputError, SettingError
from fedsim.protocol.certificates import issued_by, read_certificates
from init_fixtures import BOTH, TOWN, fedsim


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")


def receive(*words: str) -> bytes:
    """Put the job of another party into the folder ``own``; return its content."""
    fedsim("init", *BOTH, "--yes", "--out", "theirs", *words)
    Path("own").mkdir()
    Path("own/job.toml").write_bytes(Path("theirs/job.toml").read_bytes())
    return Path("own/job.toml").read_bytes()


def test_beside_a_received_job_only_the_own_file_is_written():
    job = receive()
    fedsim("init", "--secondary", "rentals.csv", "--out", "own", "--yes")
    assert Path("own/job.toml").read_bytes() == job
    assert {path.name for path in Path("own").iterdir()} == {"job.toml", "rentals.toml", "schemas", "certs"}
    assert {path.name for path in Path("own/certs").iterdir()} == {"secondary-rentals.csr", "secondary-rentals.key"}
    own = read_party_file(Path("own/rentals.toml"))
    columns = resolve_columns(read_job(Path("own/job.toml")), own, TOWN.rentals.columns)
    assert (own.name, columns.linking, columns.features) == ("rentals", ("lat", "lon"), ("rooms", "rating", "rent"))
    assert own.linkage is None


def test_own_names_of_the_agreed_columns_are_found_or_given_in_their_order():
    job = receive()
    TOWN.rentals.rename({"lat": "latitude", "lon": "Longitude"}).write_csv("homes.csv")
    fedsim("init", "--secondary", "homes.csv", "--out", "own", "--yes")
    own = read_party_file(Path("own/rentals.toml"))
    assert own.identifiers == {"lat": "latitude", "lon": "Longitude"}
    TOWN.rentals.rename({"lat": "north", "lon": "east"}).write_csv("homes.csv")
    with raises(InputError, "missing-column", column="lat"):
        fedsim("init", "--secondary", "homes.csv", "--out", "own", "--yes", "--force")
    fedsim("init", "--secondary", "homes.csv", "--out", "own", "--yes", "--force", "--on", "north,east")
    assert read_party_file(Path("own/rentals.toml")).identifiers == {"lat": "north", "lon": "east"}
    assert Path("own/job.toml").read_bytes() == job


def test_a_party_file_that_exists_is_kept_unless_forced():
    receive()
    Path("own/rentals.toml").write_text("mine")
    with raises(FileError, "files-exist", files=["rentals.toml"]):
        fedsim("init", "--secondary", "rentals.csv", "--out", "own", "--yes")
    assert Path("own/rentals.toml").read_text() == "mine"


def test_of_several_secondaries_the_one_of_the_tables_name_is_meant_or_none():
    TOWN.rentals.write_csv("schools.csv")
    receive("--secondary", "schools.csv")
    fedsim("init", "--secondary", "schools.csv", "--out", "own", "--yes")
    assert read_party_file(Path("own/schools.toml")).name == "schools"
    TOWN.rentals.write_csv("homes.csv")
    with raises(SettingError, "which-secondary", names=["rentals", "schools"]):
        fedsim("init", "--secondary", "homes.csv", "--out", "own", "--yes")


@pytest.mark.parametrize("option", [["--label", "rent"], ["--k", "5"], ["--coordinator"], ["--share", "rows"]])
def test_settings_of_the_job_cannot_be_changed_beside_it(option):
    receive()
    with raises(SettingError, "job-is-agreed", option=option[0]):
        fedsim("init", "--secondary", "rentals.csv", "--out", "own", "--yes", *option)


def test_tables_given_the_wrong_way_round_are_swapped_after_a_question():
    TOWN.rentals.rename({"lat": "latitude"}).write_csv("rentals.csv")
    words = ["init", "--primary", "rentals.csv", "--secondary", "flats.csv", "--label", "price"]
    fedsim(*words, "--on", "latitude,lon", "--on-secondary", "lat,lon", "--yes", "--out", "swapped")
    assert read_party_file(Path("swapped/flats.toml")).label.column == "price"
    assert read_party_file(Path("swapped/rentals.toml")).identifiers == {"lat": "latitude"}
    with raises(InputError, "missing-column", column="price"):
        fedsim(*words, "--out", "kept", answer="no\nlatitude,lon\nrows\n")


def test_a_received_job_with_a_coordinator_needs_its_key_and_keeps_its_noise():
    receive("--coordinator")
    output = fedsim("init", "--secondary", "rentals.csv", "--out", "own", "--yes")
    own = read_party_file(Path("own/rentals.toml"))
    assert own.linkage is not None
    assert own.policy.min_sigma == pytest.approx(0.2)
    assert "linkage.key" in output


def test_the_primary_signs_the_request_of_the_secondary_with_the_authority_that_init_created():
    fedsim("init", "--primary", "flats.csv", "--label", "price", "--yes", "--out", "city")
    Path("own").mkdir()
    Path("own/job.toml").write_bytes(Path("city/job.toml").read_bytes())
    fedsim("init", "--secondary", "rentals.csv", "--out", "own", "--yes")
    request, certificate = Path("own/certs/secondary-partner.csr"), Path("city/certs/secondary-partner.pem")
    fedsim("certs", "sign", str(request), "--out", "city/certs")
    authority = read_certificates(Path("city/certs/ca.pem"))[0]
    for path in (certificate, Path("city/certs/primary-flats.pem")):
        assert issued_by(read_certificates(path)[0], authority)


def test_certificates_that_exist_are_kept():
    words = ["init", "--primary", "flats.csv", "--label", "price", "--yes", "--out", "city"]
    fedsim(*words)
    before = {path: path.read_bytes() for path in Path("city/certs").iterdir()}
    fedsim(*words, "--force")
    assert {path: path.read_bytes() for path in Path("city/certs").iterdir()} == before


def test_the_owner_of_a_received_job_sees_how_large_its_groups_are():
    receive()
    output = fedsim("init", "--secondary", "rentals.csv", "--out", "own", "--yes")
    assert "rows covered" in output
