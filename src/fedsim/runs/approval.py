"""The owner's approval of exactly one job with exactly these columns, stored in the party's folder."""

import hashlib
import json
import os
import pwd
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsim.config.job import Job, SecondaryTerms
from fedsim.config.party_file import PartyFile, resolve_columns
from fedsim.config.toml_file import without_unused
from fedsim.errors import FedSimError, FileError
from fedsim.protocol.certificates import PARSE_ERRORS, certificate_party, certificate_pem, issued_by, read_certificates
from fedsim.protocol.tls import Credentials
from fedsim.runs.run_folder import make_private_folder
from fedsim.storage.files import atomic_write
from fedsim.validation import first_difference

APPROVAL_FORMAT = "fedsim approval 1"
MAX_STATEMENT_BYTES = 4096
_ECDSA = ec.ECDSA(hashes.SHA256())


class ApprovalError(FedSimError):
    """The owner has not approved the job; ``code`` says why."""


@dataclass(frozen=True)
class Approval:
    """What was approved, when and by whom; ``settings`` is the complete job, to show later what changed.

    ``proof`` is the party's signature of the digest of all this; empty if it is not signed.
    """

    job: str
    role: str
    name: str
    columns: Mapping[str, Any]
    privacy: Mapping[str, Any]
    time: str
    by: str
    settings: Mapping[str, Any]
    format: str = APPROVAL_FORMAT
    proof: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of everything but the signature."""
        content = {name: value for name, value in asdict(self).items() if name != "proof"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def approve(
    job: Job,
    party_file: PartyFile,
    header: Sequence[str] | None,
    *,
    by: str,
    time: datetime,
    credentials: Credentials | None = None,
) -> tuple[Approval, Path]:
    """Store the owner's approval, replacing an earlier one of the same job.

    Parameters
    ----------
    job
        The job that the owner approves.
    party_file
        The party that the owner answers for.
    header
        The column names of the party's table; None for a coordinator, which has no table.
    by
        Who approves.
    time
        When.
    credentials
        The certificate and key of the party, to sign the approval; None leaves it unsigned.

    Returns
    -------
    tuple
        The approval, and the file that stores it.
    """
    approval = Approval(
        job=job.hash,
        role=str(party_file.role),
        name=party_file.name,
        columns=resolve_columns(job, party_file, header).to_dict(),
        # The settings that determine how much each linkage discloses.
        privacy={name: _disclosing_settings(terms) for name, terms in job.secondaries.items()},
        time=time.isoformat(timespec="seconds"),
        by=by,
        settings=job.to_dict(),
    )
    signed = sign_statement({"party": str(party_file.party), "approval": approval.digest}, credentials)
    approval = replace(approval, proof=signed if signed["signature"] else {})
    path = approval_path(job, party_file)
    make_private_folder(path.parent)
    with atomic_write(path, mode=0o600) as part:
        part.write_text(json.dumps(asdict(approval), indent=1) + "\n", encoding="utf-8")
    return approval, path


def _disclosing_settings(terms: SecondaryTerms) -> dict[str, Any]:
    if terms.filters is None:
        return {**terms.model_dump(include={"k", "tokens", "max_tokens"}), "identifiers": list(terms.columns)}
    return {
        **terms.model_dump(include={"k", "metric", "tau", "sigma"}),
        "identifiers": list(terms.columns),
        "bits": terms.filters.n_bits,
        **terms.model_dump(include={"blur"}),
    }


def require_approval(job: Job, party_file: PartyFile, header: Sequence[str] | None = None) -> str:
    """Return who approved the job, when, and whether it is signed, or raise an ``ApprovalError`` with the way out.

    Call it before any data is read, and again with the table's ``header``: if the party file does not list the
    features, a column that was added to the table requires a new approval.

    Parameters
    ----------
    job
        The job that is to run.
    party_file
        The party that is to take part.
    header
        The column names of the party's table; None before it is read.
    """
    columns = resolve_columns(job, party_file, header)
    if job.hash in party_file.policy.approve:
        return "by the policy in the party file"
    approval = find_approval(job, party_file)
    if approval is None:
        stored = map(_read_approval, approval_path(job, party_file).parent.glob("*.json"))
        earlier = [other for other in stored if other and other.settings.get("name") == job.name]
        code, reason = "not-approved", "there is no approval"
        if earlier:
            last = max(earlier, key=lambda other: other.time)
            change = first_difference(job.to_dict(), without_unused(last.settings))
            code, reason = "job-changed", f"it has changed since the last approval ({change})"
    elif (approval.job, approval.role, approval.name) != (job.hash, str(party_file.role), party_file.name):
        code, reason = "approval-of-another", "the stored approval is for another job or party"
    else:
        now, then = columns.to_dict(), dict(approval.columns)
        features, approved = now.pop("features"), then.pop("features", None)
        # The order of the columns does not matter.
        same = features is None or (isinstance(approved, list) and set(features) == set(map(str, approved)))
        if same and now == then:
            if signature := _describe_signature(approval, party_file):
                return f"by {approval.by} at {approval.time}, {signature}"
            code, reason = "approval-changed", "the stored approval was changed after it was signed"
        else:
            code, reason = "columns-changed", "its columns have changed since the approval"
    paths = (job.path if job.path.name else Path("job.toml"), party_file.path)
    missing = f"the owner of {party_file.party} has not approved job '{job.name}' ({job.short_hash}): {reason}"
    raise ApprovalError(f"{missing}; review and run: fedsim approve {shlex.join(map(str, paths))}", code=code)


def _describe_signature(approval: Approval, party_file: PartyFile) -> str:
    """Return whether an approval is signed, and under the party's authority; empty if it was changed since."""
    if not approval.proof:
        return "not signed"
    authority = None
    try:
        facts = read_statement(approval.proof, None)
    except FileError:
        return ""
    if facts != {"party": str(party_file.party), "approval": approval.digest}:
        return ""
    with suppress(FileError):  # without certificates the authority is unknown
        if party_file.tls is not None:
            authority = b"".join(map(certificate_pem, read_certificates(party_file.tls.authority)))
    try:
        read_statement(approval.proof, authority)
    except FileError:
        return "signed under another authority"
    return "signed, authority not at hand" if authority is None else "signed"


def find_approval(job: Job, party_file: PartyFile) -> Approval | None:
    """Return the stored approval of exactly this job, whatever its columns.

    Parameters
    ----------
    job
        The job.
    party_file
        The party whose approval is looked up.

    Returns
    -------
    Approval or None
        None if there is none, or if its file is invalid.
    """
    return _read_approval(approval_path(job, party_file))


def approval_path(job: Job, party_file: PartyFile) -> Path:
    """Return where the approval of a job is stored."""
    return party_file.folder / "approvals" / f"{job.hash}.json"


def current_user() -> str:
    """Return the name of the operating system's user, which no environment variable changes; empty without one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _read_approval(path: Path) -> Approval | None:
    """Read an approval; an invalid file counts as missing, because the owner can approve again."""
    try:
        approval = Approval(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (approval.job, approval.role, approval.name, approval.time, approval.by)
    tables = (approval.columns, approval.privacy, approval.settings, approval.proof)
    valid = all(isinstance(text, str) for text in texts) and all(isinstance(table, dict) for table in tables)
    return approval if valid and approval.format == APPROVAL_FORMAT else None


# Statements that a party signs with the key of its certificate


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
        known = authority is None or any(issued_by(certificate, issuer) for issuer in issuers)
        named = str(certificate_party(pem)) == party
        if not (known and named and isinstance(key, ec.EllipticCurvePublicKey)):
            return False
        key.verify(signature, text.encode(), _ECDSA)
    except (*PARSE_ERRORS, exceptions.InvalidSignature, FedSimError):
        return False
    return True
