"""Keys that never leave their party, requests that an authority signs, and certificates that are revoked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.protocol import certificates as certs
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import read_credentials
from fedsim.protocol.transport import ConnectionLost
from fedsim_ops.authority import create_request, party_files, request_file, revoke_certificates, sign_request

NOW = datetime.now(UTC)
RENTALS, CITY, NOTARY = (
    Party(Role.SECONDARY, "rentals"),
    Party(Role.PRIMARY, "city"),
    Party(Role.COORDINATOR, "notary"),
)


def signed(folder, party, fingerprint=None, days=90):
    """A party's key in its own folder, and its certificate from the authority in another."""
    request, _ = create_request(folder / party.name, party)
    *_, certificate = sign_request(folder / "authority", request, NOW, days, fingerprint)
    return certificate, party_files(folder / party.name, party)[1]


def credentials(folder, party, *, revocations=None):
    certificate, key = (
        party_files(folder / "authority", party)[0],
        party_files(folder / party.name, party)[1],
    )
    return read_credentials(folder / "authority" / "ca.pem", certificate, key, party, revocations=revocations)


def test_a_key_made_by_its_party_works_and_the_authority_never_has_it(tmp_path):
    certificate, key = signed(tmp_path, RENTALS)
    assert credentials(tmp_path, RENTALS).days_left(NOW) in (89, 90)
    assert key.stat().st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "authority").glob("*.key")] == ["ca.key"]
    assert certs.certificate_party(certificate.read_bytes()) == RENTALS


def test_a_request_that_another_replaced_on_its_way_is_refused_by_its_fingerprint(tmp_path):
    _, fingerprint = create_request(tmp_path / "rentals", RENTALS)
    forged, _ = create_request(tmp_path / "mallory", RENTALS)
    with raises(FileError, "other-fingerprint"):
        sign_request(tmp_path / "authority", forged, NOW, fingerprint=fingerprint)
    assert not (tmp_path / "authority").exists()
    spaced = ":".join(fingerprint[at : at + 2].upper() for at in range(0, 64, 2))
    sign_request(tmp_path / "authority", request_file(tmp_path / "rentals", RENTALS), NOW, 90, spaced)


def test_a_key_is_never_overwritten(tmp_path):
    create_request(tmp_path, RENTALS)
    with raises(FileError, "file-exists"):
        create_request(tmp_path, RENTALS)


def request_of(key, *names, subject="secondary rentals"):
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


URI, DNS = x509.UniformResourceIdentifier(certs.party_uri(RENTALS)), x509.DNSName(certs.server_name(RENTALS))
KEY = ec.generate_private_key(ec.SECP256R1())
BAD = {
    "no text": b"nothing",
    "another kind of key": request_of(rsa.generate_private_key(65537, 2048), DNS, URI),
    "no party": request_of(KEY),
    "two parties": request_of(KEY, DNS, URI, x509.UniformResourceIdentifier(certs.party_uri(CITY))),
    "another name beside": request_of(KEY, DNS, URI, x509.DNSName(certs.server_name(NOTARY))),
    "changed after signing": request_of(KEY, DNS, URI).replace(b"M", b"N", 3),
}


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_is_none_is_not_signed(tmp_path, what):
    (tmp_path / "bad.csr").write_bytes(BAD[what])
    with pytest.raises(FileError):
        sign_request(tmp_path / "authority", tmp_path / "bad.csr", NOW)
    assert not (tmp_path / "authority").exists()


def test_a_certificate_that_was_revoked_is_refused_by_its_own_party_and_others_are_not(tmp_path):
    signed(tmp_path, RENTALS), signed(tmp_path, CITY)
    revoked = revoke_certificates(tmp_path / "authority", [tmp_path / "authority" / "secondary-rentals.pem"], NOW)
    with raises(FileError, "certificate-revoked"):
        credentials(tmp_path, RENTALS, revocations=revoked)
    credentials(tmp_path, CITY, revocations=revoked)
    again = revoke_certificates(tmp_path / "authority", [tmp_path / "authority" / "primary-city.pem"], NOW)
    for party in (RENTALS, CITY):  # a list grows
        with raises(FileError, "certificate-revoked"):
            credentials(tmp_path, party, revocations=again)


def test_a_list_of_another_authority_is_refused_and_not_taken_for_empty(tmp_path):
    signed(tmp_path, RENTALS), signed(tmp_path / "other", CITY)
    foreign = revoke_certificates(
        tmp_path / "other" / "authority", [tmp_path / "other" / "authority" / "primary-city.pem"], NOW
    )
    for revoked in (foreign, tmp_path / "missing.pem", tmp_path / "authority" / "ca.pem"):
        with pytest.raises(FileError):
            credentials(tmp_path, RENTALS, revocations=revoked)


def test_a_file_may_hold_the_lists_of_an_old_and_a_new_authority(tmp_path):
    signed(tmp_path, RENTALS), signed(tmp_path / "new", CITY)
    old, new = tmp_path / "authority", tmp_path / "new" / "authority"
    lists = [
        revoke_certificates(old, [old / "secondary-rentals.pem"], NOW),
        revoke_certificates(new, [], NOW),
    ]
    (tmp_path / "both.pem").write_bytes(b"".join(path.read_bytes() for path in lists))
    (old / "ca.pem").write_bytes((old / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
    with raises(FileError, "certificate-revoked"):
        credentials(tmp_path, RENTALS, revocations=tmp_path / "both.pem")


def test_a_revoked_party_that_dials_again_and_again_does_not_fill_the_log(tmp_path, caplog):
    signed(tmp_path, RENTALS), signed(tmp_path, CITY)
    rentals = GrpcTransport(credentials(tmp_path, RENTALS))  # it ignores the list
    listed = revoke_certificates(tmp_path / "authority", [tmp_path / "authority" / "secondary-rentals.pem"], NOW)
    city = GrpcTransport(credentials(tmp_path, CITY, revocations=listed))
    listener = city.listen("127.0.0.1:0", lambda caller, stream: stream.close())
    try:
        for _ in range(4):
            with pytest.raises(ConnectionLost):
                rentals.dial(listener.address, CITY).receive()
        assert sum("revoked" in message for message in caplog.messages) == 1
    finally:
        listener.close()


def test_a_certificate_revoked_while_parties_run_opens_no_connection_either_way(tmp_path):
    signed(tmp_path, RENTALS), signed(tmp_path, CITY)
    listed, heard = tmp_path / "authority" / "revoked.pem", []
    revoke_certificates(tmp_path / "authority", [], NOW)
    city, rentals = (GrpcTransport(credentials(tmp_path, party, revocations=listed)) for party in (CITY, RENTALS))
    listener = city.listen("127.0.0.1:0", lambda caller, stream: (heard.append(caller), stream.close()))
    try:
        with pytest.raises(ConnectionLost):  # the peer hangs up at once
            rentals.dial(listener.address, CITY).receive()
        assert heard == [RENTALS]
        revoke_certificates(tmp_path / "authority", [tmp_path / "authority" / "secondary-rentals.pem"], NOW)
        with pytest.raises(ConnectionLost):
            rentals.dial(listener.address, CITY).receive()
        assert heard == [RENTALS]  # and it was not let in again
        revoke_certificates(tmp_path / "authority", [tmp_path / "authority" / "primary-city.pem"], NOW)
        with pytest.raises(ConnectionLost) as caught:
            rentals.dial(listener.address, CITY)
        assert caught.value.code == "certificate-revoked"
    finally:
        listener.close()
