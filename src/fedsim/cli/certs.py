"""Issue, renew and list certificates (``fedsim certs``)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer
from cryptography.x509 import Certificate

from fedsim.cli.options import OutputMode
from fedsim.cli.output import print_table
from fedsim.errors import FileError, SettingError
from fedsim.protocol import certificates
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import RENEWAL_DAYS
from fedsim.report.formatting import pluralise


def run_certs(names: Mapping[str, Sequence[str]], out: Path, days: int, mode: OutputMode, *, renew: bool) -> None:
    """Issue or renew the certificates of the named parties."""
    parties = [Party(Role(role), name) for role, listed in names.items() for name in listed]
    if not parties:
        message = "no party named; use --coordinator, --primary or --secondary, or --show with a folder"
        raise SettingError(message, code="no-party-named")
    repeated = [party for party in parties if parties.count(party) > 1]
    if repeated:
        raise SettingError(f"{repeated[0]} is named twice; name each party once", code="party-named-twice")
    issue = certificates.renew_certificates if renew else certificates.issue_certificates
    written = issue(out, parties, datetime.now(UTC), days)
    _print_certificates([path for path in written if path.suffix == ".pem"], out, mode)
    if mode.silent:
        return
    keys = [path.name for path in written if path.suffix == ".key"]
    if keys:
        typer.echo(f"Wrote {out}. Send each party ca.pem and its own .pem and .key over a secure channel.")
    else:
        typer.echo(f"Wrote {out}. Send each party its new .pem; ca.pem and the keys are unchanged.")
    if "ca.key" in keys:
        typer.echo("Keep ca.key offline: it can certify anyone as a party. No party needs it.")


def run_list_certs(folder: Path, mode: OutputMode) -> None:
    """List the certificates of a folder, the authority first."""
    paths = sorted(folder.glob("*.pem"), key=lambda path: (path.stem != "ca", path.name))
    if not paths:
        message = f"no certificates (*.pem) in {folder}; check the path, or create some with --out {folder}"
        raise FileError(message, code="no-certificates")
    _print_certificates(paths, folder, mode)


def _print_certificates(paths: Sequence[Path], folder: Path, mode: OutputMode) -> None:
    authority = certificates.read_certificates(certificates.authority_files(folder)[0])[0]
    values, rows = [], []
    for path in paths:
        certificate = certificates.read_certificates(path)[0]
        end = certificate.not_valid_after_utc
        left, owner = end - datetime.now(UTC), _certificate_owner(certificate, authority)
        facts = {"file": str(path), "of": owner, "until": end.isoformat(), "days_left": left // timedelta(days=1)}
        values.append(facts)
        days = round(left / timedelta(days=1))
        lasts = pluralise(days, "day") + (", renew soon" if days < RENEWAL_DAYS else "")
        rows.append((path.name, owner, f"{end:%Y-%m-%d}", "expired" if left < timedelta() else lasts))
    mode.show({"certificates": values}, lambda: print_table(("file", "party", "expires", "time left"), rows))


def _certificate_owner(certificate: Certificate, authority: Certificate) -> str:
    if certificate == authority:
        return "the authority"
    if not certificates.issued_by(certificate, authority):
        return "of another authority"
    try:
        return str(certificates.certificate_party(certificates.certificate_pem(certificate)))
    except FileError:
        return "of no party"
