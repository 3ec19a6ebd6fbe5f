"""Statements that a party signs with the key of its certificate."""

import json
from collections.abc import Mapping
from typing import Any

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsim.errors import FedSimError, FileError
from fedsim.protocol import certificates
from fedsim.protocol.tls import Credentials

MAX_STATEMENT_BYTES = 4096
_ECDSA = ec.ECDSA(hashes.SHA256())


def sign_statement(facts: Mapping[str, str], credentials: Credentials | None) -> dict[str, str]:
    """Return statement, certificate and signature as text; the last two are empty without an elliptic-curve key."""
    text = json.dumps(facts, sort_keys=True)
    unsigned = {"statement": text, "certificate": "", "signature": ""}
    if credentials is None:
        return unsigned
    credentials = credentials.current()
    key = serialization.load_pem_private_key(credentials.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return unsigned
    signature = key.sign(text.encode(), _ECDSA).hex()
    return {"statement": text, "certificate": credentials.certificate.decode("ascii"), "signature": signature}


def read_statement(signed: Any, authority: bytes | None) -> dict[str, str]:
    """Return the facts of a statement; a ``FileError`` unless the ``party`` among them signed it.

    Parameters
    ----------
    signed
        Statement, certificate and signature, as :func:`sign_statement` returns them.
    authority
        The authority's certificates as PEM. Without them any certificate that names the party is accepted.
    """
    try:
        text, pem, signature = signed["statement"], signed["certificate"], bytes.fromhex(signed["signature"])
        facts: Any = json.loads(text) if len(text) <= MAX_STATEMENT_BYTES else None
        if _is_signed(facts["party"], text, pem.encode(), signature, authority):
            return dict(facts)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    raise FileError("this is not a statement signed by the party it names; ask for it again", code="not-signed")


def _is_signed(party: str, text: str, pem: bytes, signature: bytes, authority: bytes | None) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
        issuers = x509.load_pem_x509_certificates(authority) if authority else []
        known = authority is None or any(certificates.issued_by(certificate, issuer) for issuer in issuers)
        named = str(certificates.certificate_party(pem)) == party
        if not (known and named and isinstance(key, ec.EllipticCurvePublicKey)):
            return False
        key.verify(signature, text.encode(), _ECDSA)
    except (*certificates.PARSE_ERRORS, exceptions.InvalidSignature, FedSimError):
        return False
    return True
