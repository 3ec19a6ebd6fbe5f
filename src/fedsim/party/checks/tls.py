"""Certificates and the clock by which they are valid."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedsim.errors import FedSimError
from fedsim.party.checks.finding import Finding, failed, ok, telling, warning
from fedsim.party.checks.subject import Place
from fedsim.party.checks.trust import readable_by_others
from fedsim.party.party_file import PartyFile, Tls
from fedsim.protocol.certificates import read_certificates, read_key
from fedsim.protocol.tls import SOON_DAYS, Credentials, read_credentials

SKEW = timedelta(minutes=5)  # between the clocks of machines that share a disk
PLAIN = "make certificates with `fedsim certs`; without them only --insecure works, on one machine"


def certificate(place: Place) -> Iterator[Finding]:
    """All three files, the same authority, this role and name, valid today and for some time."""
    tls = place.own.tls
    if tls is None:
        yield warning("certificate", "the party file has no [tls]", PLAIN)
        return
    unread = list(_unread(tls))
    yield from unread
    if not unread:
        credentials = read_credentials(tls.authority, tls.certificate, tls.key, place.own.party, place.now)
        yield _days_left("the certificate", credentials.days_left(place.now))
        authority = min(each.not_valid_after_utc for each in read_certificates(tls.authority))
        if (days := (authority - place.now).days) < SOON_DAYS:
            yield _days_left("the authority", days)
    yield from readable_by_others("certificate", tls.key)


def usable_credentials(own: PartyFile, now: datetime) -> Credentials | None:
    """What the party can show to a peer, if anything."""
    try:
        tls = own.tls
        return read_credentials(tls.authority, tls.certificate, tls.key, own.party, now) if tls else None
    except FedSimError:
        return None


def clock(place: Place) -> Iterator[Finding]:
    """No file of the party was written in the future."""
    for path in _files(place.own):
        try:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except (OSError, OverflowError, ValueError):
            continue  # whoever reads the file says why
        if written - place.now > SKEW:
            yield warning(
                "clock",
                f"{path} was written at {written:%Y-%m-%d %H:%M} UTC, later than the clock here says",
                "set the clock; certificates depend on it",
            )
            return
    yield ok("clock", f"{place.now:%Y-%m-%d %H:%M} UTC")


def _unread(tls: Tls) -> Iterator[Finding]:
    for read, path in ((read_certificates, tls.authority), (read_certificates, tls.certificate), (read_key, tls.key)):
        try:
            read(path)
        except FedSimError as error:
            yield failed("certificate", str(error))


def _days_left(what: str, days: int) -> Finding:
    if days < SOON_DAYS:
        return warning("certificate", f"{what} ends in {days} days", "renew it: `fedsim certs --renew`")
    return telling("certificate", f"{what} is good for {days:,} more days")


def _files(own: PartyFile) -> Iterator[Path]:
    yield own.path
    if own.data and own.data.file:
        yield own.data.file
    if own.linkage:
        yield own.linkage.key
    if own.tls:
        yield from (own.tls.authority, own.tls.certificate, own.tls.key)
