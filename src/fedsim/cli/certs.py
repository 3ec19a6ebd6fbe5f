"""``fedsim certs``: certificates by which the parties of a job know each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Json, Quiet
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
    as_json: Json = False,
) -> None:
    """Make an authority, and a certificate and key for each party, good for its role and name alone.

    fedsim certs --coordinator notary --primary city --secondary rentals --secondary schools
    """
    from fedsim.protocol import certificates

    now, parties = datetime.now(UTC), _parties(coordinator or [], primary or [], secondary or [])
    if show is not None:
        _tell(_certificates(_listed(show, parties), show, now), quiet=quiet, as_json=as_json)
        return
    if not parties:
        raise SettingError("no party named; give --coordinator, --primary or --secondary a name, or --show a folder")
    written = certificates.renew(out, parties, now, days) if renew else certificates.certify(out, parties, now, days)
    _tell(_certificates([path for path in written if path.suffix == ".pem"], out, now), quiet=quiet, as_json=as_json)
    if not quiet and not as_json:
        for line in _advice(written, out):
            typer.echo(line)


@dataclass(frozen=True)
class Seen:
    """A certificate: its file, whose it is and how long it is good."""

    file: str
    of: str
    until: datetime
    left: timedelta

    def line(self) -> str:
        """For people."""
        return f"{Path(self.file).name:<28} {self.of:<28} until {self.until:%Y-%m-%d}, {_left(self.left)}"

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        days = self.left // timedelta(days=1)
        return {"file": self.file, "of": self.of, "until": self.until.isoformat(), "days_left": days}


def _tell(found: Iterator[Seen], *, quiet: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"certificates": [one.as_dict() for one in found]}, ensure_ascii=False))
    elif not quiet:
        for one in found:
            typer.echo(one.line())


def _parties(coordinators: Sequence[str], primaries: Sequence[str], secondaries: Sequence[str]) -> list[Party]:
    from fedsim.protocol.parties import Party, Role

    named = {Role.COORDINATOR: coordinators, Role.PRIMARY: primaries, Role.SECONDARY: secondaries}
    parties = [Party(role, name) for role, names in named.items() for name in names]
    for party in parties:
        if parties.count(party) > 1:
            raise SettingError(f"{party} is named twice; name each party once")
    return parties


def _listed(folder: Path, parties: Sequence[Party]) -> list[Path]:
    if parties:
        raise SettingError("--show only lists certificates; leave it away to make some")
    found = sorted(folder.glob("*.pem"), key=lambda path: (path.stem != "ca", path.name))
    if not found:
        raise FileError(f"no certificates (*.pem) in {folder}; check the path, or make some with --out {folder}")
    return found


def _certificates(paths: Sequence[Path], folder: Path, now: datetime) -> Iterator[Seen]:
    """Whose each certificate is, and for how long."""
    from fedsim.protocol.certificates import authority_files, read_certificates

    authority = read_certificates(authority_files(folder)[0])[0]
    for path in paths:
        certificate = read_certificates(path)[0]
        end = certificate.not_valid_after_utc
        yield Seen(str(path), _whose(certificate, authority), end, end - now)


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
