"""Credentials are read only if peers will accept them, and plaintext stays on this machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from error_fixtures import raises
from fedsim.errors import FileError, SettingError
from fedsim.protocol.addresses import split_address
from fedsim.protocol.certificates import certificate_pem, key_pem, server_name
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import Credentials, check_plaintext, is_loopback, read_credentials
from fedsim_ops.authority import Authority, CertificateKeyPair

DAY = timedelta(days=1)
NOW = datetime.now(UTC)
PAST, FUTURE = NOW - 30 * DAY, NOW + 30 * DAY
OURS, FOREIGN = Authority.create(NOW - 100 * DAY), Authority.create(NOW - 100 * DAY)
CITY, RENTALS, SCHOOLS = Party(Role.PRIMARY, "city"), Party(Role.SECONDARY, "rentals"), Party(Role.SECONDARY, "schools")
COORDINATOR = Party(Role.COORDINATOR, "rentals")


def trusting(pair: CertificateKeyPair, authority: Authority = OURS) -> Credentials:
    return Credentials(authority.pair.certificate, pair.certificate, pair.key)


def own_signature(party: Party, key: ec.EllipticCurvePrivateKey, signer: Authority | None = None) -> CertificateKeyPair:
    """A certificate that signs itself, or one for a key of any kind."""
    name = x509.Name.from_rfc4514_string(f"CN={party.name}")
    issuer, by = (signer.certificate.subject, signer.key) if signer else (name, key)
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), 7, PAST, FUTURE).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(server_name(party))]), critical=False
    )
    return CertificateKeyPair(certificate_pem(builder.sign(by, SHA256())), key_pem(key))


CLIENT = trusting(OURS.issue(CITY, NOW))
SERVER = trusting(OURS.issue(RENTALS, NOW))


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.9.8.7:50051", "[::1]:50051", "localhost:1", "LocalHost:1"])
def test_plaintext_is_allowed_on_this_machine(address: str) -> None:
    assert is_loopback(address)
    check_plaintext(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:1",
        "[::]:1",
        "10.0.0.1:1",
        "128.0.0.1:1",
        "127.1:1",
        "[::ffff:127.0.0.1]:1",
        "[::1%eth0]:1",
        "localhost.example.org:1",
    ],
)
def test_plaintext_is_refused_where_others_may_listen(address: str) -> None:
    assert not is_loopback(address)
    with raises(SettingError, "plaintext-to-others"):
        check_plaintext(address)


@pytest.mark.parametrize(
    "address",
    ["", "localhost", ":1", "::1:1", "a:b", "host:65536", "host:-1", "host:١", "unix:/tmp/x", "a:1:2", "a:1\n"],
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with raises(SettingError, "invalid-address"):
        split_address(address)


# --- files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The authority, certificate and key of the secondary."""
    paths = tmp_path / "ca.pem", tmp_path / "own.pem", tmp_path / "own.key"
    for path, content in zip(paths, (SERVER.authority, SERVER.certificate, SERVER.key), strict=True):
        path.write_bytes(content)
        path.chmod(0o600)
    return paths


def refusal(files: tuple[Path, Path, Path], party: Party = RENTALS, now: datetime = NOW) -> str:
    with pytest.raises(FileError) as caught:
        read_credentials(*files, party, now)
    secret = SERVER.key.decode().splitlines()[1]
    assert secret not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
    return str(caught.value.code)


def test_good_files_are_read(files: tuple[Path, Path, Path]) -> None:
    found = read_credentials(*files, RENTALS)
    assert found == SERVER
    assert "PRIVATE" not in f"{found!r} {found}"
    assert [found.days_left(NOW + days * DAY) for days in (0, 89, 91)] == [89, 0, -2]


def test_text_around_the_pem_is_left_behind(files: tuple[Path, Path, Path]) -> None:
    for path in files:
        path.write_bytes("Für die Akte:\r\n".encode() + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_credentials(*files, RENTALS) == SERVER


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_absent_or_unreadable_file_is_named(files: tuple[Path, Path, Path], place: int) -> None:
    files[place].write_bytes(b"-----BEGIN nonsense")
    assert refusal(files) in ("no-certificate", "no-key")
    files[place].unlink()
    assert refusal(files) == "not-readable"
    files[place].mkdir()
    assert refusal(files) == "not-readable"


def test_swapped_files_are_noticed(files: tuple[Path, Path, Path]) -> None:
    authority, certificate, key = files
    assert refusal((authority, key, certificate)) == "no-certificate"
    assert refusal((authority, certificate, certificate)) == "no-key"


@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_key_that_everybody_may_read_or_change_is_refused(files: tuple[Path, Path, Path], mode: int) -> None:
    files[2].chmod(mode)
    with raises(FileError, "exposed-key"):
        read_credentials(*files, RENTALS)


def test_a_locked_key_is_refused_without_a_question(files: tuple[Path, Path, Path]) -> None:
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open")
    )
    files[2].write_bytes(locked)
    assert refusal(files) == "locked-key"


def test_a_key_of_another_certificate_is_refused(files: tuple[Path, Path, Path]) -> None:
    files[2].write_bytes(CLIENT.key)
    assert refusal(files) == "wrong-key"


@pytest.mark.parametrize("content", [FOREIGN.pair.certificate, SERVER.certificate], ids=["another", "a party"])
def test_an_authority_that_did_not_issue_the_certificate_is_refused(
    files: tuple[Path, Path, Path], content: bytes
) -> None:
    files[0].write_bytes(content)
    assert refusal(files) == "other-authority"


def test_an_authority_with_the_right_name_and_another_key_is_refused(files: tuple[Path, Path, Path]) -> None:
    forged = Authority(OURS.certificate, FOREIGN.key).issue(RENTALS, NOW)
    files[1].write_bytes(forged.certificate)
    files[2].write_bytes(forged.key)
    assert refusal(files) == "other-authority"


def test_dates_are_checked_and_the_clock_is_named(files: tuple[Path, Path, Path]) -> None:
    late, early = NOW + 366 * DAY, NOW - DAY
    assert refusal(files, now=late) == refusal(files, now=early) == "certificate-out-of-date"
    assert refusal(files, now=NOW - 101 * DAY) == refusal(files, now=NOW + 3000 * DAY) == "authority-out-of-date"


@pytest.mark.parametrize("party", [SCHOOLS, COORDINATOR, CITY], ids=str)
def test_the_certificate_of_another_role_or_name_is_refused(files: tuple[Path, Path, Path], party: Party) -> None:
    assert refusal(files, party) == "other-party"


def test_a_certificate_without_a_party_is_refused(files: tuple[Path, Path, Path]) -> None:
    pair = own_signature(RENTALS, ec.generate_private_key(ec.SECP256R1()), OURS)
    files[1].write_bytes(pair.certificate)
    files[2].write_bytes(pair.key)
    assert refusal(files) == "bad-names"
