"""Heads of audit logs that parties sign and exchange, so that no owner can rewrite a log alone.

A hash chain shows that a line was changed, but not that its owner wrote the whole chain anew. So at every phase of a
job each party sends its peers a signed statement: my log has so many entries, and this is the hash of the last. Peers
store it and note it in their own logs. Whoever verifies a log later asks the peers for these receipts; what came after
the last receipt, and what only absent peers could confirm, rests on the owner's word.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import exceptions, x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsim.errors import FedSimError, FileError
from fedsim.protocol import certificates
from fedsim.protocol.messages import LogHead, Party, Phase
from fedsim.protocol.tls import Credentials
from fedsim.runs.run_folder import AuditEntry, AuditLog, make_private_folder
from fedsim.storage.files import append_durably, read_bytes

MAX_RECEIPTS = 1000  # of one peer in one process: nobody else may fill our disk
MAX_STATEMENT_BYTES = 4096
_ECDSA = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class LogStatement:
    """What a party says of its log; ``signed`` unless it runs without certificates."""

    party: str
    job: str
    phase: str
    entries: int
    head: str
    signed: bool = False


@dataclass(eq=False)
class LogExchange:
    """Signs the heads of a party's own log, and stores those of its peers."""

    log: AuditLog
    job: str
    credentials: Credentials | None
    _received: Counter[Party] = field(default_factory=Counter, init=False)

    def head(self, phase: Phase) -> LogHead:
        """Return the message with the head of our own log."""
        entries, last = self.log.head()
        facts = {"party": str(self.log.party), "job": self.job, "phase": phase.value, "entries": entries, "head": last}
        signed = sign_statement(facts, self.credentials)
        signature = np.frombuffer(bytes.fromhex(signed["signature"]), np.uint8)
        return LogHead(signed["statement"], signed["certificate"], signature=signature)

    def receive(self, peer: Party, message: LogHead) -> None:
        """Verify and store a peer's head, and note it in our own log; an invalid one is only noted."""
        self._received[peer] += 1
        if self._received[peer] > MAX_RECEIPTS:
            return
        receipt = {"statement": message.statement, "certificate": message.certificate}
        receipt["signature"] = message.signature.tobytes().hex()
        authority = None if self.credentials is None else self.credentials.current().authority
        try:
            statement = read_receipt(receipt, authority)
            valid = statement.party == str(peer) and (authority is None or statement.signed)
        except FileError:
            valid = False
        if not valid:
            self.log.append("peer's log refused", {"peer": str(peer)})
            return
        path = receipt_path(self.log.path.parent, peer)
        make_private_folder(path.parent)
        append_durably(path, json.dumps(receipt, sort_keys=True).encode() + b"\n", mode=0o600)
        seen = {"phase": statement.phase, "head": statement.head}
        self.log.append("peer's log", {"peer": str(peer), "entries": statement.entries, **seen})


def receipt_path(folder: Path, peer: Party) -> Path:
    """Return where a party stores what a peer said of its log."""
    return folder / "receipts" / f"{peer.role}-{peer.name}.jsonl"


def read_receipt(receipt: Any, authority: bytes | None) -> LogStatement:
    """Return the statement of a receipt; a ``FileError`` unless its signature is that of the party it names.

    Parameters
    ----------
    receipt
        Statement, certificate and signature, as stored.
    authority
        The authority's certificates as PEM. Without them any certificate that names the party is accepted.
    """
    kinds = {"party": str, "job": str, "phase": str, "entries": int, "head": str}
    facts, signed = read_statement(receipt, kinds, authority)
    return LogStatement(**facts, signed=signed)


def sign_statement(facts: Mapping[str, str | int], credentials: Credentials | None) -> dict[str, str]:
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


def read_statement(signed: Any, kinds: Mapping[str, type], authority: bytes | None) -> tuple[dict[str, Any], bool]:
    """Return the facts of a statement, which have these ``kinds``, and whether the ``party`` among them signed it.

    A statement without certificate is unsigned; a signature that does not match is a ``FileError``.
    """
    try:
        text, pem, signature = signed["statement"], signed["certificate"], bytes.fromhex(signed["signature"])
        facts: Any = json.loads(text) if len(text) <= MAX_STATEMENT_BYTES else None
        if set(facts) == set(kinds) and all(type(facts[name]) is kind for name, kind in kinds.items()):
            proven = bool(pem) and _is_signed(facts["party"], text, pem.encode(), signature, authority)
            if proven or not pem:
                return facts, proven
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    raise FileError("this is not a statement signed by the party it names; ask for it again", code="bad-receipt")


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


@dataclass(frozen=True)
class LogConfirmation:
    """How far peers confirm a log: entries up to ``entries``, by so many receipts, signed ones among them."""

    entries: int
    receipts: int
    signed: int


def confirm_log(
    entries: Sequence[AuditEntry], paths: Iterable[Path], authority: bytes | None = None
) -> LogConfirmation:
    """Compare a log with the receipts that peers hold of it; a ``FileError`` where they contradict each other.

    Parameters
    ----------
    entries
        The log.
    paths
        Files of receipts, one for each peer.
    authority
        The authority's certificates as PEM.
    """
    owner = entries[0].party if entries else ""
    confirmed, receipts, signed = 0, 0, 0
    for path in paths:
        for number, line in enumerate(read_bytes(path).splitlines(), 1):
            where = f"{path}, line {number}"
            try:
                statement = read_receipt(json.loads(line), authority)
            except (ValueError, FileError):
                raise FileError(f"{where} is not a valid receipt", code="bad-receipt", line=number) from None
            if statement.party != owner:
                fault = f"{where} belongs to {statement.party}, but the log belongs to {owner or 'nobody'}"
                raise FileError(f"{fault}; give receipts of this log", code="other-party", line=number)
            found = entries[statement.entries - 1].hash if 1 <= statement.entries <= len(entries) else ""
            if found != statement.head:
                fault = f"{where}: a peer saw another log at entry {statement.entries}"
                raise FileError(f"{fault}; the log was rewritten or cut off", code="log-rewritten", line=number)
            confirmed, receipts = max(confirmed, statement.entries), receipts + 1
            signed += statement.signed
    return LogConfirmation(confirmed, receipts, signed)
