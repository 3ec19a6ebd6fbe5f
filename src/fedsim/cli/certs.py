"""``fedsim certs``: certificates by which the parties of a job know each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Quiet
from fedsim.errors import FileError, SettingError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from fedsim.protocol.parties import Party

Names = list[str] | None
Out = Annotated[Path, typer.Option(help="Folder to write; an authority that is in it already signs for the new ones.")]
Coordinator = Annotated[Names, typer.Option(metavar="NAME", help="Name of the coordinator.")]
Primary = Annotated[Names, typer.Option(metavar="NAME", help="Name of the primary.")]
Secondary = Annotated[Names, typer.Option(metavar="NAME", help="Name of a secondary; repeat it for each.")]
Days = Annotated[int, typer.Option(help="How long the certificates are valid.")]
Renew = Annotated[bool, typer.Option("--renew", help="Replace certificates by later ones; the keys stay the same.")]
Show = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Only list the certificates of a folder.")]


def certs(
    out: Out = Path("certs"),
    coordinator: Coordinator = None,
    primary: Primary = None,
    secondary: Secondary = None,
    days: Days = 365,
    renew: Renew = False,
    show: Show = None,
    quiet: Quiet = False,
) -> None:
    """Make an authority, and a certificate and key for each party, good for its role and name alone.

    fedsim certs --coordinator notary --primary city --secondary rentals --secondary schools
    """
    from fedsim.protocol import certificates

    now, parties = datetime.now(UTC), _parties(coordinator or [], primary or [], secondary or [])
    if show is not None:
        _show(show, parties, now)
        return
    if not parties:
        raise SettingError("no party named; give --coordinator, --primary or --secondary a name, or --show a folder")
    written = certificates.renew(out, parties, now, days) if renew else certificates.certify(out, parties, now, days)
    if not quiet:
        _print(_lines([path for path in written if path.suffix == ".pem"], out, now))
        _print(_advice(written, out))


def _parties(coordinators: Sequence[str], primaries: Sequence[str], secondaries: Sequence[str]) -> list[Party]:
    from fedsim.protocol.parties import Party, Role

    named = {Role.COORDINATOR: coordinators, Role.PRIMARY: primaries, Role.SECONDARY: secondaries}
    parties = [Party(role, name) for role, names in named.items() for name in names]
    for party in parties:
        if parties.count(party) > 1:
            raise SettingError(f"{party} is named twice; name each party once")
    return parties


def _show(folder: Path, parties: Sequence[Party], now: datetime) -> None:
    if parties:
        raise SettingError("--show only lists certificates; leave it away to make some")
    found = sorted(folder.glob("*.pem"), key=lambda path: (path.stem != "ca", path.name))
    if not found:
        raise FileError(f"no certificates (*.pem) in {folder}; check the path, or make some with --out {folder}")
    _print(_lines(found, folder, now))


def _lines(paths: Sequence[Path], folder: Path, now: datetime) -> Iterator[str]:
    """Whose each certificate is, and for how long."""
    from fedsim.protocol.certificates import authority_files, read_certificates

    authority = read_certificates(authority_files(folder)[0])[0]
    for path in paths:
        certificate = read_certificates(path)[0]
        end = certificate.not_valid_after_utc
        yield f"{path.name:<28} {_whose(certificate, authority):<28} until {end:%Y-%m-%d}, {_left(end - now)}"


def _whose(certificate: Certificate, authority: Certificate) -> str:
    from fedsim.protocol.certificates import issued_by, party_of, pem_of

    if certificate == authority:
        return "the authority"
    if not issued_by(certificate, authority):
        return "of another authority"
    try:
        return str(party_of(pem_of(certificate)))
    except FileError:
        return "of no party"


def _left(time: timedelta) -> str:
    from fedsim.protocol.tls import SOON_DAYS
    from fedsim.report.words import many

    if time < timedelta():
        return "expired"
    days = round(time / timedelta(days=1))
    return f"{many(days, 'day')} left" + (": renew soon" if days < SOON_DAYS else "")


def _advice(written: Sequence[Path], folder: Path) -> Iterator[str]:
    keys = [path.name for path in written if path.suffix == ".key"]
    if keys:
        yield f"all in {folder}: give each party ca.pem and its own .pem and .key over a safe way, no other .key"
    else:
        yield f"all in {folder}: give each party its new .pem; ca.pem and its key stay as they are"
    if "ca.key" in keys:
        yield "ca.key can make anyone a party: it goes to none of them, keep it offline with whoever runs this command"


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        typer.echo(line)
