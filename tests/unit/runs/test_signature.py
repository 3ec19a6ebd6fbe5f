"""A statement counts only if the party that it names signed it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import read_credentials
from fedsim.runs.signature import read_statement, sign_statement
from fedsim_ops.authority import issue_certificates, party_files

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
