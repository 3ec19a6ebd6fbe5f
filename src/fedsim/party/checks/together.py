"""What only shows when the files of several parties are at hand: do they fit each other?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from fedsim.errors import FedSimError
from fedsim.party.checks.finding import Finding, fails, ok
from fedsim.party.checks.trust import fingerprints
from fedsim.party.job import Job
from fedsim.party.party_file import PartyFile
from fedsim.protocol.certificates import pem_of, read_certificates


@dataclass(frozen=True, eq=False)
class Company:
    """Parties of one job whose files could be read."""

    job: Job
    files: Sequence[PartyFile]


def one_file_each(company: Company) -> Iterator[Finding]:
    """No party twice, no folder for two."""
    by_party: dict[object, PartyFile] = {}
    by_folder: dict[Path, PartyFile] = {}
    for own in company.files:
        twin, neighbour = by_party.setdefault(own.party, own), by_folder.setdefault(own.folder.absolute(), own)
        if twin is not own:
            yield fails("files", f"{twin.path} and {own.path} are both of {own.party}", "check one of them")
        elif neighbour is not own:
            yield fails("files", f"{neighbour.path} and {own.path} name one folder", "give every party a folder")
    here = f"{len(by_party)} of {len(company.job.parties)} parties"
    yield ok("files", here)


def same_key(company: Company) -> Iterator[Finding]:
    """Both sides of every list have the same key."""
    sides: dict[str, dict[str, PartyFile]] = {}
    for own in company.files:
        for name, found in fingerprints(company.job, own).items():
            sides.setdefault(name, {}).setdefault(found, own)
    for name, prints in sides.items():
        if len(prints) > 1:
            paths = " and ".join(str(own.linkage.key) for own in prints.values() if own.linkage)
            yield fails("linkage keys", f"for {name} two keys differ: {paths}", "copy one to the other over a safe way")
    if all(len(prints) == 1 for prints in sides.values()):
        yield ok("linkage keys", "alike")


def same_authority(company: Company) -> Iterator[Finding]:
    """All certificates come from one folder of `fedsim certs`."""
    trusted = [(own, _authorities(own)) for own in company.files]
    known = [(own, found) for own, found in trusted if found]
    for (one, first), (other, second) in combinations(known, 2):
        if not first & second:
            yield fails(
                "authorities",
                f"{one.party} and {other.party} trust different authorities",
                "give all parties files of one folder of `fedsim certs`",
            )
            return
    yield ok("authorities", "alike")


def _authorities(own: PartyFile) -> set[bytes]:
    """None where they cannot be read, which is told with the party."""
    try:
        return set(map(pem_of, read_certificates(own.tls.authority))) if own.tls else set()
    except FedSimError:
        return set()
