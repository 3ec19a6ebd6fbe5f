"""Certificates that bind a key to one role and one name; ``fedsim_ops.authority`` issues them.

A client requires the name that :func:`server_name` returns, whatever host the peer runs on, so the certificate of a
secondary is valid neither for the coordinator nor for another secondary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from fedsim.errors import FileError, SettingError
from fedsim.protocol.messages import Party, Role
from fedsim.storage.files import SecretReference, SecretSource, check_private

_X509_ERRORS = x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType
# Raised by the library for bytes that are not a certificate it knows.
PARSE_ERRORS = (ValueError, TypeError, exceptions.UnsupportedAlgorithm, *_X509_ERRORS)
_MAX_BYTES = 1 << 20  # of a certificate or key file: a mistyped path may be a large table or a device
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
        return named_party(x509.load_pem_x509_certificate(pem))
    except PARSE_ERRORS:
        fault = "not a certificate in PEM format; create one with `fedsim certs`"
        raise FileError(fault, code="no-certificate") from None


def read_certificates(path: SecretSource) -> list[x509.Certificate]:
    """Read all certificates of a PEM file; an authority's file may contain the old and the new one."""
    content = read_pem(path)
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
    content = read_pem(path)
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
        found = named_party(certificate)
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


# Revocation: a list that the authority signs and every party reads whenever a peer connects


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
        lists = [x509.load_pem_x509_crl(each) for each in _LIST.findall(read_pem(path))]
        if lists and all(any(_signed(each, one) for one in authorities) for each in lists):
            return lists
    except PARSE_ERRORS:
        pass
    fault = f"{path} is not a list of revoked certificates that our authority signed"
    raise FileError(f"{fault}; get the list from the authority", code="bad-revocation-list")


def _signed(listed: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return listed.issuer == authority.subject and listed.is_signature_valid(key)  # type: ignore[arg-type]


def read_pem(path: SecretSource) -> bytes:
    """Return the content of a certificate or key file, or of a reference."""
    if isinstance(path, SecretReference):
        return path.read()
    try:
        with path.open("rb") as stream:
            return stream.read(_MAX_BYTES)
    except OSError as error:
        fault = f"cannot read {path}: {error.strerror}; create certificates with `fedsim certs`, or check the path"
        raise FileError(fault, code="not-readable") from error


def named_party(certificate: x509.Certificate | x509.CertificateSigningRequest) -> Party:
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
