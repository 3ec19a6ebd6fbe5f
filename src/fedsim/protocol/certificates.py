"""Certificates that bind a key to one role and one name, and the authority that issues them.

A client requires the name that :func:`server_name` returns, whatever host the peer runs on, so the certificate of a
secondary is valid neither for the coordinator nor for another secondary.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsim.errors import FileError, SettingError
from fedsim.protocol.messages import Party, Role
from fedsim.storage.files import atomic_write, check_private
from fedsim.storage.key_source import SecretReference, SecretSource

PARTY_DAYS = 90
AUTHORITY_DAYS = 5 * 365 + 1
_X509_ERRORS = x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType
# Raised by the library for bytes that are not a certificate it knows.
PARSE_ERRORS = (ValueError, TypeError, exceptions.UnsupportedAlgorithm, *_X509_ERRORS)
_SKEW = timedelta(minutes=5)  # clocks differ a little: a new certificate must be valid everywhere
_MAX_BYTES = 1 << 20  # of a certificate or key file: a mistyped path may be a large table or a device
_MAX_DAYS = 20 * 365
_URI = re.compile(r"fedsim://([a-z]+)/(.+)")
_LIST = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)

NEW_AUTHORITY_HINT = "create a new one with `fedsim certs` in another folder, or correct the clock"


def server_name(party: Party) -> str:
    """Return the name that a client requires in a peer's certificate.

    >>> server_name(Party(Role.SECONDARY, "rentals"))
    'rentals.secondary.fedsim'
    """
    return f"{party.name}.{party.role}.fedsim"


def party_uri(party: Party) -> str:
    """Return the URI of a party in its certificate.

    >>> party_uri(Party(Role.SECONDARY, "rentals"))
    'fedsim://secondary/rentals'
    """
    return f"fedsim://{party.role}/{party.name}"


def certificate_party(pem: bytes) -> Party:
    """Return the party that a certificate names; only the handshake verifies it."""
    try:
        return _party(x509.load_pem_x509_certificate(pem))
    except PARSE_ERRORS:
        fault = "not a certificate in PEM format; create one with `fedsim certs`"
        raise FileError(fault, code="no-certificate") from None


def read_certificates(path: SecretSource) -> list[x509.Certificate]:
    """Read all certificates of a PEM file; an authority's file may contain the old and the new one."""
    content = _read(path)
    try:
        return [decode_fully(each) for each in x509.load_pem_x509_certificates(content)]
    except PARSE_ERRORS:
        hint = "it contains a private key: are two paths swapped?" if b"PRIVATE KEY" in content else "copy it again"
        raise FileError(f"{path} is not a certificate in PEM format; {hint}", code="no-certificate") from None


def decode_fully(certificate: x509.Certificate) -> x509.Certificate:
    """Parse every part of a certificate, so that a fault shows here; the library parses lazily."""
    _ = certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key()
    _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return certificate


def read_key(path: SecretSource) -> PrivateKeyTypes:
    """Read a private key in PEM format; a file of it only its owner, or the owner's group, may read."""
    content = _read(path)
    check_private(path)
    try:
        return serialization.load_pem_private_key(content, password=None)
    except TypeError:
        fault = f"{path} is encrypted with a password; store the key without one, readable by its owner only"
        raise FileError(fault, code="locked-key") from None
    except (ValueError, exceptions.UnsupportedAlgorithm):
        hint = "it contains a certificate: are two paths swapped?" if b"CERTIFICATE" in content else "copy it again"
        # Without the cause, which could quote the secret.
        raise FileError(f"{path} is not a private key in PEM format; {hint}", code="no-key") from None


def key_matches(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    """Return whether a private key belongs to a certificate."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether ``issuer`` is an authority that signed this certificate."""
    try:
        certificate.verify_directly_issued_by(issuer)
        return issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (*PARSE_ERRORS, exceptions.InvalidSignature, x509.ExtensionNotFound):
        return False


def check_party(certificate: x509.Certificate, path: SecretSource, party: Party) -> None:
    """Raise ``FileError`` unless the certificate belongs to the party."""
    try:
        found = _party(certificate)
    except FileError as error:
        raise FileError(f"{path}: {error}", code=error.code) from None
    if found != party:
        fault = f"{path} is the certificate of {found}, but this is {party}; give the files of {party}"
        raise FileError(fault, code="other-party")


def date_fault(certificate: x509.Certificate, now: datetime) -> str:
    """Return why a certificate is not valid now, or an empty text; the clock itself may be wrong."""
    clock = f"and the clock of this machine says {format_time(now)}"
    if now > certificate.not_valid_after_utc:
        return f"expired on {format_time(certificate.not_valid_after_utc)}, {clock}"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {format_time(certificate.not_valid_before_utc)}, {clock}"
    return ""


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKeyTypes) -> bytes:
    """Return a private key as PEM, which is a secret."""
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(*form, serialization.NoEncryption())


def format_time(moment: datetime) -> str:
    """Format a time unambiguously for readers in any country.

    >>> format_time(datetime(2027, 1, 31, 9, 30, tzinfo=UTC))
    '2027-01-31 09:30 UTC'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


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
        request = x509.load_pem_x509_csr(_read(path))
        valid = request.is_signature_valid and isinstance(request.public_key(), ec.EllipticCurvePublicKey)
    except PARSE_ERRORS:
        valid = False
    if not valid:
        fault = f"{path} is not a signing request with an elliptic-curve key; make one with `fedsim certs request`"
        raise FileError(fault, code="no-request")
    return request, _party(request)


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


def is_revoked(pem: bytes, paths: Sequence[Path], authorities: bytes) -> bool:
    """Return whether the authority that issued a certificate has it on its list, in one of these files.

    The files are read anew every time, so that a certificate can be revoked while a job runs. One that is invalid is
    an error for certificates whose authority has no list in another one.
    """
    known, certificate = x509.load_pem_x509_certificates(authorities), x509.load_pem_x509_certificate(pem)
    issuers = [each for each in known if issued_by(certificate, each)]
    lists: list[x509.CertificateRevocationList] = []
    fault: FileError | None = None
    for path in paths:
        try:
            lists += [each for each in read_revocation_lists(path, known) if any(_signed(each, one) for one in issuers)]
        except FileError as error:
            fault = error
    if fault and not lists:
        raise fault
    return any(each.get_revoked_certificate_by_serial_number(certificate.serial_number) for each in lists)


def read_revocation_lists(path: Path, authorities: Sequence[x509.Certificate]) -> list[x509.CertificateRevocationList]:
    """Read a file of one or several lists of revoked certificates, each of which one of the authorities has signed."""
    try:
        lists = [x509.load_pem_x509_crl(each) for each in _LIST.findall(_read(path))]
        if lists and all(any(_signed(each, one) for one in authorities) for each in lists):
            return lists
    except PARSE_ERRORS:
        pass
    fault = f"{path} is not a list of revoked certificates that our authority signed"
    raise FileError(f"{fault}; get the list from the authority", code="bad-revocation-list")


def _signed(listed: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return listed.issuer == authority.subject and listed.is_signature_valid(key)  # type: ignore[arg-type]


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


def _read(path: SecretSource) -> bytes:
    if isinstance(path, SecretReference):
        return path.read()
    try:
        with path.open("rb") as stream:
            return stream.read(_MAX_BYTES)
    except OSError as error:
        fault = f"cannot read {path}: {error.strerror}; create certificates with `fedsim certs`, or check the path"
        raise FileError(fault, code="not-readable") from error


def _party(certificate: x509.Certificate | x509.CertificateSigningRequest) -> Party:
    """Return the one party in the alternative names; further names are refused, because a peer might accept them."""
    try:
        names = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (*PARSE_ERRORS, x509.ExtensionNotFound):
        names = []
    uris = [_URI.fullmatch(each.value) for each in names if isinstance(each, x509.UniformResourceIdentifier)]
    if len(uris) != 1 or uris[0] is None:
        raise FileError("the certificate names no party, or several; use one made by `fedsim certs`", code="bad-names")
    role, name = uris[0].groups()
    if role not in tuple(Role):
        raise FileError(f"the certificate is for the role '{role[:20]}', not {', '.join(Role)}", code="bad-names")
    try:
        party = Party(Role(role), name)
    except SettingError:
        fault = f"the certificate is for a {role} with an invalid name; create a new one"
        raise FileError(fault, code="bad-names") from None
    if len(names) != 2 or x509.DNSName(server_name(party)) not in names:
        fault = f"the certificate of {party} has further names; use one made by `fedsim certs`"
        raise FileError(fault, code="bad-names")
    return party


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
