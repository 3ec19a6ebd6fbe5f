"""Certificates are good for one role and one name, and their keys are never lost or shown."""

from __future__ import annotations

import itertools
import ssl
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings, strategies as st

from error_fixtures import raises
from fedsim.errors import FedSimError, FileError, SettingError
from fedsim.protocol.certificates import certificate_party, party_uri, read_certificates, server_name
from fedsim.protocol.messages import PARTY_NAME, Party, Role
from fedsim_ops.authority import Authority, CertificateKeyPair, issue_certificates, party_files, renew_certificates

NOW = datetime.now(UTC)
AUTHORITY = Authority.create(NOW)
CITY, RENTALS = Party(Role.PRIMARY, "city"), Party(Role.SECONDARY, "rentals")
FIXED = AUTHORITY.issue(RENTALS, NOW)
parties = st.builds(Party, st.sampled_from(Role), st.from_regex(PARTY_NAME, fullmatch=True))


def decoded(pair: CertificateKeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def bearing(*names: x509.GeneralName) -> bytes:
    """A certificate with these alternative names."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def context_of(pair: CertificateKeyPair, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=AUTHORITY.pair.certificate.decode())
    with TemporaryDirectory() as folder:
        path = Path(folder) / "own.pem"
        path.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(path)
    return context


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> Party:
    """Whom the server sees; both ends check each other, without a network between."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(down, up, server_hostname=name)
    right = server.wrap_bio(up, down, server_side=True)
    for side in (left, right, left, right):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return certificate_party(ssl.DER_cert_to_PEM_cert(right.getpeercert(binary_form=True) or b"").encode())


def test_every_party_proves_itself_and_nobody_else() -> None:
    everyone = [Party(role, name) for role in Role for name in ("city", "primary")]
    pairs = {party: AUTHORITY.issue(party, NOW) for party in everyone}
    clients = {party: context_of(pair, ssl.PROTOCOL_TLS_CLIENT) for party, pair in pairs.items()}
    servers = {party: context_of(pair, ssl.PROTOCOL_TLS_SERVER) for party, pair in pairs.items()}
    for caller, called, wanted in itertools.product(everyone, repeat=3):
        if called == wanted:
            assert handshake(clients[caller], servers[called], server_name(wanted)) == caller
        else:
            with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
                handshake(clients[caller], servers[called], server_name(wanted))


@settings(max_examples=30)
@given(parties)
def test_any_party_that_may_have_a_name_can_shake_hands(party: Party) -> None:
    pair = AUTHORITY.issue(party, NOW)
    client, server = context_of(pair, ssl.PROTOCOL_TLS_CLIENT), context_of(pair, ssl.PROTOCOL_TLS_SERVER)
    assert handshake(client, server, server_name(party)) == party


def test_a_certificate_names_one_party_and_serves_both_ends_of_a_connection() -> None:
    found = decoded(AUTHORITY.issue(RENTALS, NOW))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uses = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [each.value for each in names] == ["rentals.secondary.fedsim", "fedsim://secondary/rentals"]
    assert set(uses) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert found.subject.rfc4514_string() == "CN=secondary rentals"


def test_the_authority_signs_certificates_and_no_further_authority() -> None:
    limits = AUTHORITY.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    use = AUTHORITY.certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (limits.value.ca, limits.value.path_length, limits.critical) == (True, 0, True)
    assert (use.key_cert_sign, use.crl_sign, use.digital_signature) == (True, True, False)


def test_certificates_start_five_minutes_back_and_last_as_asked() -> None:
    found = decoded(AUTHORITY.issue(CITY, NOW, days=7))
    start = NOW.replace(microsecond=0)
    assert found.not_valid_before_utc == start - timedelta(minutes=5)
    assert found.not_valid_after_utc == start + timedelta(days=7)


def test_serial_numbers_and_keys_are_never_the_same() -> None:
    pairs = [AUTHORITY.issue(CITY, NOW) for _ in range(20)]
    assert len({decoded(pair).serial_number for pair in pairs}) == 20
    assert len({pair.key for pair in pairs}) == 20


def test_no_certificate_outlives_its_authority() -> None:
    short = Authority.create(NOW, days=100)
    assert decoded(short.issue(CITY, NOW, days=100)).not_valid_after_utc == short.certificate.not_valid_after_utc
    with raises(SettingError, "days-too-large"):
        short.issue(CITY, NOW, days=101)


def test_an_expired_authority_signs_nothing() -> None:
    with raises(FileError, "authority-out-of-date"):
        AUTHORITY.issue(CITY, NOW + timedelta(days=3000))


@pytest.mark.parametrize("days", [-1, 0, 7301, 10**12])
def test_a_certificate_lasts_at_least_a_day_and_at_most_twenty_years(days: int) -> None:
    with raises(SettingError, "bad-days"):
        AUTHORITY.issue(CITY, NOW, days=days)


def test_no_repr_shows_a_key() -> None:
    pair = AUTHORITY.issue(CITY, NOW)
    assert "PRIVATE" not in f"{pair!r} {pair} {AUTHORITY!r} {AUTHORITY.key!r}"


DNS, URI = x509.DNSName(server_name(CITY)), x509.UniformResourceIdentifier(party_uri(CITY))
STRANGE_NAMES: dict[str, list[x509.GeneralName]] = {
    "no name": [],
    "no party": [DNS],
    "several parties": [DNS, URI, x509.UniformResourceIdentifier(party_uri(RENTALS))],
    "an unknown role": [DNS, x509.UniformResourceIdentifier("fedsim://king/city")],
    "an invalid name": [DNS, x509.UniformResourceIdentifier("fedsim://primary/City Hall")],
    "a further name": [DNS, URI, x509.DNSName(server_name(RENTALS))],
    "another name": [x509.DNSName(server_name(RENTALS)), URI],
    "another scheme": [x509.UniformResourceIdentifier("https://example.org/primary/city")],
}


@pytest.mark.parametrize("names", STRANGE_NAMES)
def test_a_certificate_with_strange_names_is_refused(names: str) -> None:
    with raises(FileError, "bad-names"):
        certificate_party(bearing(*STRANGE_NAMES[names]))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # a warning to programmers about the sender
@settings(max_examples=200)
@given(st.data())
def test_a_damaged_certificate_is_the_party_or_an_error_of_ours(data: st.DataObject) -> None:
    whole = bytearray(decoded(FIXED).public_bytes(Encoding.DER))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FedSimError):
        assert isinstance(certificate_party(ssl.DER_cert_to_PEM_cert(bytes(whole)).encode()), Party)


def test_a_folder_gets_one_authority_and_a_pair_for_each_party(tmp_path: Path) -> None:
    written = issue_certificates(tmp_path / "certs", [CITY, RENTALS], NOW)
    names = [
        "ca.pem",
        "ca.key",
        "primary-city.pem",
        "primary-city.key",
        "secondary-rentals.pem",
        "secondary-rentals.key",
    ]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in (tmp_path / "certs").iterdir()) == sorted(names)
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.suffix == ".key"} == {0o600}


def test_a_later_call_adds_parties_under_the_same_authority(tmp_path: Path) -> None:
    issue_certificates(tmp_path, [CITY], NOW)
    before = (tmp_path / "ca.pem").read_bytes()
    assert [path.name for path in issue_certificates(tmp_path, [RENTALS], NOW)] == [
        "secondary-rentals.pem",
        "secondary-rentals.key",
    ]
    assert (tmp_path / "ca.pem").read_bytes() == before
    read_certificates(tmp_path / "secondary-rentals.pem")[0].verify_directly_issued_by(
        read_certificates(tmp_path / "ca.pem")[0]
    )


@pytest.mark.parametrize("ending", [".pem", ".key"])
def test_nothing_is_overwritten_and_nothing_written_beside_it(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"secondary-rentals{ending}").write_text("precious")
    with raises(FileError, "file-exists"):
        issue_certificates(tmp_path, [CITY, RENTALS], NOW)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_a_pair_is_written_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issue_certificates(tmp_path, [CITY], NOW)
    before, place = set(tmp_path.iterdir()), Path.replace

    def full_disk(path: Path, target: Path) -> Path:
        if target.suffix == ".key":
            raise OSError(28, "No space left on device")
        return place(path, target)

    monkeypatch.setattr(Path, "replace", full_disk)
    with raises(FileError, "not-writable"):
        issue_certificates(tmp_path, [RENTALS], NOW)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
def test_half_an_authority_is_not_completed_by_another_one(tmp_path: Path, name: str) -> None:
    issue_certificates(tmp_path, [CITY], NOW)
    (tmp_path / name).unlink()
    with raises(FileError, "missing"):
        issue_certificates(tmp_path, [RENTALS], NOW)


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    issue_certificates(tmp_path, [CITY], NOW)
    (tmp_path / "ca.key").write_bytes(AUTHORITY.pair.key)
    with raises(FileError, "wrong-key"):
        issue_certificates(tmp_path, [RENTALS], NOW)


def test_a_party_cannot_act_as_the_authority(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(FIXED.certificate)
    (tmp_path / "ca.key").write_bytes(FIXED.key)
    (tmp_path / "ca.key").chmod(0o600)
    with raises(FileError, "no-authority"):
        issue_certificates(tmp_path, [CITY], NOW)


def test_renewal_keeps_the_key_which_need_not_be_there(tmp_path: Path) -> None:
    issue_certificates(tmp_path, [RENTALS], NOW, days=10)
    certificate, key = party_files(tmp_path, RENTALS)
    key.unlink()
    old = read_certificates(certificate)[0]
    assert renew_certificates(tmp_path, [RENTALS], NOW + timedelta(days=20)) == [certificate]
    new = read_certificates(certificate)[0]
    assert new.public_key() == old.public_key()
    assert new.serial_number != old.serial_number
    assert new.not_valid_after_utc == old.not_valid_after_utc + timedelta(days=100)
    assert not key.exists()


def test_renewal_refuses_what_is_absent_of_another_party_or_of_another_authority(tmp_path: Path) -> None:
    issue_certificates(tmp_path, [CITY], NOW)
    certificate, _ = party_files(tmp_path, RENTALS)
    with raises(FileError, "missing"):
        renew_certificates(tmp_path, [RENTALS], NOW)
    certificate.write_bytes(party_files(tmp_path, CITY)[0].read_bytes())
    with raises(FileError, "other-party"):
        renew_certificates(tmp_path, [RENTALS], NOW)
    certificate.write_bytes(FIXED.certificate)
    with raises(FileError, "other-authority"):
        renew_certificates(tmp_path, [RENTALS], NOW)
