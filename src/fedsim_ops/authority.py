"""The authority that issues certificates of parties, renews and revokes them, and signs the requests of parties.

Its key can make anyone a party, so it belongs to a person whom all parties trust to identify them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsim.errors import FileError, SettingError
from fedsim.protocol.certificates import (
    NEW_AUTHORITY_HINT,
    PARSE_ERRORS,
    certificate_pem,
    check_party,
    date_fault,
    format_time,
    issued_by,
    key_matches,
    key_pem,
    named_party,
    party_uri,
    read_certificates,
    read_key,
    read_pem,
    read_revocation_lists,
    server_name,
)
from fedsim.protocol.messages import Party
from fedsim.storage.files import atomic_write

PARTY_DAYS = 90
AUTHORITY_DAYS = 5 * 365 + 1
_SKEW = timedelta(minutes=5)  # clocks differ a little: a new certificate must be valid everywhere
_MAX_DAYS = 20 * 365


@dataclass(frozen=True)
class CertificateKeyPair:
    """A certificate and its private key as PEM; ``repr`` shows neither.

    >>> CertificateKeyPair(certificate=b"", key=b"")
    CertificateKeyPair()
    """

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, repr=False)
class Authority:
    """Issues certificates. Its key can make anyone a party, so it stays offline with the person who runs it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, now: datetime, days: int = AUTHORITY_DAYS) -> Authority:
        """Create an authority that signs certificates of parties, but no further authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        name = _x509_name(f"FedSim authority {own.digest.hex()[:8]}")  # distinguishable in messages
        builder = _builder(name, name, key.public_key(), now, _expiry(now, days), ca=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """Read the authority whose ``ca.pem`` and ``ca.key`` are in a folder."""
        for path in authority_files(folder):
            if not os.path.lexists(path):
                fault = f"{path} is missing; restore it from its backup, or choose another folder"
                raise FileError(fault, code="missing")
        certificate_path, key_path = authority_files(folder)
        certificate, key = read_certificates(certificate_path)[0], read_key(key_path)
        if not issued_by(certificate, certificate):
            fault = f"{certificate_path} is not an authority; restore the one that `fedsim certs` created"
            raise FileError(fault, code="no-authority")
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not key_matches(key, certificate):
            fault = f"{key_path} is not the key of {certificate_path}; restore the two files created together"
            raise FileError(fault, code="wrong-key")
        return cls(certificate, key)

    @property
    def pair(self) -> CertificateKeyPair:
        """Its own certificate and key."""
        return CertificateKeyPair(certificate_pem(self.certificate), key_pem(self.key))

    def issue(self, party: Party, now: datetime, days: int = PARTY_DAYS) -> CertificateKeyPair:
        """Create a key for a party, and the certificate that binds it to role and name."""
        key = ec.generate_private_key(ec.SECP256R1())
        return CertificateKeyPair(self.sign(party, key.public_key(), now, days), key_pem(key))

    def sign(self, party: Party, key: ec.EllipticCurvePublicKey, now: datetime, days: int = PARTY_DAYS) -> bytes:
        """Sign a certificate for the public key of a party; it never expires after the authority."""
        if fault := date_fault(self.certificate, now):
            raise FileError(f"the authority {fault}; {NEW_AUTHORITY_HINT}", code="authority-out-of-date")
        end, last = _expiry(now, days), self.certificate.not_valid_after_utc
        if end > last:
            most = (last - now).days
            fault = f"days={days}, but the authority itself expires on {format_time(last)}"
            hint = f"choose at most {most} days, or create a new authority in another folder"
            raise SettingError(f"{fault}; {hint}", code="days-too-large", limit=most)
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        names = [x509.DNSName(server_name(party)), x509.UniformResourceIdentifier(party_uri(party))]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        subject = _x509_name(f"{party.role} {party.name}")
        builder = (
            _builder(subject, self.certificate.subject, key, now, end, ca=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(above, critical=False)
        )
        return certificate_pem(builder.sign(self.key, hashes.SHA256()))


def authority_files(folder: Path) -> tuple[Path, Path]:
    """Return the paths of an authority's certificate and key."""
    return folder / "ca.pem", folder / "ca.key"


def party_files(folder: Path, party: Party) -> tuple[Path, Path]:
    """Return the paths of a party's certificate and key.

    >>> from fedsim.protocol.messages import Role
    >>> [path.name for path in party_files(Path("certs"), Party(Role.SECONDARY, "rentals"))]
    ['secondary-rentals.pem', 'secondary-rentals.key']
    """
    stem = f"{party.role}-{party.name}"
    return folder / f"{stem}.pem", folder / f"{stem}.key"


def issue_certificates(folder: Path, parties: Sequence[Party], now: datetime, days: int = PARTY_DAYS) -> list[Path]:
    """Create certificate and key of each party, and an authority if there is none; return the paths written.

    If one of the files exists, nothing is written at all.
    """
    for path in (path for party in parties for path in party_files(folder, party)):
        if os.path.lexists(path):
            hint = "choose another folder, use --renew for a later certificate of the same key, or remove the two files"
            raise FileError(f"{path} exists and is never overwritten; {hint} of the party", code="file-exists")
    pairs = {}
    if any(map(os.path.lexists, authority_files(folder))):
        authority = Authority.read(folder)
    else:
        authority = Authority.create(now)
        pairs[authority_files(folder)] = authority.pair
    pairs |= {party_files(folder, party): authority.issue(party, now, days) for party in parties}
    _make_folder(folder)
    for (certificate, key), pair in pairs.items():
        _write_pair(certificate, key, pair)
    return [path for files in pairs for path in files]


def renew_certificates(folder: Path, parties: Sequence[Party], now: datetime, days: int = PARTY_DAYS) -> list[Path]:
    """Replace certificates of parties by later ones for the same keys; return the paths written."""
    authority = Authority.read(folder)
    renewed = {}
    for party in parties:
        path, _ = party_files(folder, party)
        if not os.path.lexists(path):
            raise FileError(f"{path} does not exist; omit --renew to create the first certificate", code="missing")
        certificate = read_certificates(path)[0]
        key = certificate.public_key()
        check_party(certificate, path, party)
        if not isinstance(key, ec.EllipticCurvePublicKey) or not issued_by(certificate, authority.certificate):
            fault = f"{path} was issued by another authority; renew it there, or remove it to create a new one here"
            raise FileError(fault, code="other-authority")
        renewed[path] = authority.sign(party, key, now, days)
    for path, pem in renewed.items():
        with atomic_write(path) as part:
            part.write_bytes(pem)
    return list(renewed)


# Keys that are made where they are used: a party makes its key and a request, the authority signs the request. The key
# never leaves the party, and the authority sees nothing that it could be misused for.


def create_request(folder: Path, party: Party) -> tuple[Path, str]:
    """Create a party's key and a signing request beside it; return the request and the fingerprint of the key."""
    request, key_path = request_file(folder, party), party_files(folder, party)[1]
    for path in (request, key_path):
        if os.path.lexists(path):
            hint = "choose another folder, or move the old key away"
            raise FileError(f"{path} exists and is never overwritten; {hint}", code="file-exists")
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(server_name(party)), x509.UniformResourceIdentifier(party_uri(party))]
    builder = x509.CertificateSigningRequestBuilder(_x509_name(f"{party.role} {party.name}"))
    signed = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(key, hashes.SHA256())
    _make_folder(folder)
    with atomic_write(key_path, mode=0o600) as secret_part:
        secret_part.write_bytes(key_pem(key))
    with atomic_write(request) as part:
        part.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return request, key_fingerprint(signed)


def request_file(folder: Path, party: Party) -> Path:
    """Return the path of a party's signing request."""
    return party_files(folder, party)[0].with_suffix(".csr")


def read_request(path: Path) -> tuple[x509.CertificateSigningRequest, Party]:
    """Read a request and the party it names; raise ``FileError`` unless it is signed with the key that it names."""
    try:
        request = x509.load_pem_x509_csr(read_pem(path))
        valid = request.is_signature_valid and isinstance(request.public_key(), ec.EllipticCurvePublicKey)
    except PARSE_ERRORS:
        valid = False
    if not valid:
        fault = f"{path} is not a signing request with an elliptic-curve key; make one with `fedsim certs request`"
        raise FileError(fault, code="no-request")
    return request, named_party(request)


def key_fingerprint(holder: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Return SHA-256 of a public key, which its owner and the authority compare by another channel."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return sha256(holder.public_key().public_bytes(*form)).hexdigest()


def sign_request(
    folder: Path, path: Path, now: datetime, days: int = PARTY_DAYS, fingerprint: str | None = None
) -> list[Path]:
    """Sign a request by the authority of a folder, which is created if there is none; return the paths written.

    Parameters
    ----------
    folder
        Where the authority is, and the certificate goes.
    path
        The request.
    now, days
        Begin and length of the certificate's validity.
    fingerprint
        The fingerprint that the party's owner communicated, if it must be compared.
    """
    request, party = read_request(path)
    found, key = key_fingerprint(request), request.public_key()
    if fingerprint is not None and fingerprint.replace(":", "").lower() != found:
        fault = f"the key of {path} has the fingerprint {found}, not the expected one"
        raise FileError(f"{fault}; ask the owner of {party} for both again", code="other-fingerprint")
    written = []
    if any(map(os.path.lexists, authority_files(folder))):
        authority = Authority.read(folder)
    else:
        authority = Authority.create(now)
        _make_folder(folder)
        _write_pair(*authority_files(folder), authority.pair)
        written = list(authority_files(folder))
    certificate = party_files(folder, party)[0]
    assert isinstance(key, ec.EllipticCurvePublicKey)  # noqa: S101 - read_request accepts no other
    with atomic_write(certificate) as part:
        part.write_bytes(authority.sign(party, key, now, days))
    return [*written, certificate]


# Revocation: a list that the authority signs and every party reads whenever a peer connects


def revocation_file(folder: Path) -> Path:
    """Return the path of an authority's list of revoked certificates."""
    return folder / "revoked.pem"


def revoke_certificates(folder: Path, paths: Sequence[Path], now: datetime) -> Path:
    """Add certificates to the authority's list of revoked ones and sign it again; return its path."""
    authority, path = Authority.read(folder), revocation_file(folder)
    revoked = {}
    if os.path.lexists(path):
        lists = read_revocation_lists(path, [authority.certificate])
        revoked = {each.serial_number: each.revocation_date_utc for each in lists[0]}
    for each in paths:
        certificate = read_certificates(each)[0]
        if not issued_by(certificate, authority.certificate):
            raise FileError(f"{each} was issued by another authority; revoke it there", code="other-authority")
        revoked.setdefault(certificate.serial_number, now)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now.replace(microsecond=0) - _SKEW)
        .next_update(authority.certificate.not_valid_after_utc)
    )
    for serial, moment in revoked.items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(moment).build()
        builder = builder.add_revoked_certificate(entry)
    with atomic_write(path) as part:
        part.write_bytes(builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        fault = f"cannot create the folder {folder}: {error.strerror}; choose another one"
        raise FileError(fault, code="not-writable") from error


def _write_pair(certificate: Path, key: Path, pair: CertificateKeyPair) -> None:
    """Write both files or neither: both are on the disk before one gets its name, and the key gets its name last."""
    try:
        with atomic_write(key, mode=0o600) as secret_part:
            secret_part.write_bytes(pair.key)
            with atomic_write(certificate) as part:
                part.write_bytes(pair.certificate)
    finally:
        if not key.exists():
            certificate.unlink(missing_ok=True)


def _x509_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime, *, ca: bool
) -> x509.CertificateBuilder:
    """Return what the certificates of authorities and parties share."""
    uses = ("key_cert_sign", "crl_sign") if ca else ("digital_signature",)
    usage = x509.KeyUsage(**{use: use in uses for use in inspect.signature(x509.KeyUsage).parameters})
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.replace(microsecond=0) - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.BasicConstraints(ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )


def _expiry(now: datetime, days: int) -> datetime:
    if not 1 <= days <= _MAX_DAYS:
        raise SettingError(f"days={days}; choose between 1 and {_MAX_DAYS}", code="bad-days", limit=_MAX_DAYS)
    return now.replace(microsecond=0) + timedelta(days=days)
