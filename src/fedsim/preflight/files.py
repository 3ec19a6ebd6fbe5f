"""Checks of job and party files: each by itself, and whether the files of several parties fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.config.toml_file import ConfigFileError, find_setting_lines, parse_toml, read_text_file
from fedsim.errors import FedSimError, nearest_word
from fedsim.preflight.finding import CheckFinding, failure, failure_from_message, info, ok
from fedsim.preflight.trust import key_fingerprints
from fedsim.protocol.certificates import certificate_pem, read_certificates

# Where a party file says a thing, and which kind of file a path leads to


SettingPath = tuple[str, ...]  # such as ("label", "column")


def setting_location(own: PartyFile, setting: SettingPath) -> str:
    """The party file, the line and the setting, as a sentence begins; nothing for one that is not written there."""
    try:
        line = find_setting_lines(read_text_file(own.path)).get(setting)
    except FedSimError:  # the file has gone since it was read
        return ""
    return f"{own.path}, line {line}: {'.'.join(setting)}: " if line else ""


def is_party_file(path: Path) -> bool:
    """Whether a file is meant to be that of a party, sound or not."""
    words = _top_level_keys(path)
    return "role" in words and "secondaries" not in words


def is_job_file(path: Path) -> bool:
    """Whether a file is meant to be a job, sound or not."""
    words = _top_level_keys(path)
    return "secondaries" in words and "role" not in words


def nearest_file(path: Path) -> str:
    """The file beside one that is not there whose name was probably meant; of the same kind, by its ending."""
    try:
        beside = [other.name for other in path.parent.iterdir() if other.suffixes == path.suffixes]
    except OSError:
        return ""
    stems = {name.partition(".")[0]: name for name in sorted(beside)}
    return stems.get(nearest_word(path.name.partition(".")[0], stems), "")


def _top_level_keys(path: Path) -> set[str]:
    try:
        return set(parse_toml(read_text_file(path), path))
    except FedSimError:
        return set()


# Job and party files: read, or every mistake at once with file, line and the nearest word


MAX_FAULTS = 20  # mistakes of one file: who has more of them begins with the first


def check_argument_order(job: Path, parties: Sequence[Path]) -> CheckFinding | None:
    """One sentence where a party file stands in the place of the job, instead of all that a job has and it has not."""
    if not is_party_file(job):
        return None
    meant = next((path for path in parties if is_job_file(path)), None)
    others = [job, *(path for path in parties if path != meant)]
    words = " ".join(map(str, [meant or "JOB.toml", *others]))
    return failure("job file", f"{job} is the file of a party, and the job comes first", f"say: fedsim check {words}")


def check_job_file(path: Path) -> tuple[Job | None, list[CheckFinding]]:
    """The job, if its file is sound."""
    try:
        job = read_job(path)
    except FedSimError as error:
        return None, _file_findings("job file", error)
    parties = ", ".join(map(str, job.parties))
    return job, [ok("job file", str(path)), info("parties", parties)]


def check_party_file(path: Path) -> tuple[PartyFile | None, list[CheckFinding]]:
    """The party file, if it is sound."""
    try:
        own = read_party_file(path)
    except FedSimError as error:
        if is_job_file(path):
            return None, [failure("party file", f"{path} is a job, no file of a party", "name it first, and once")]
        return None, _file_findings("party file", error)
    return own, [ok("party file", str(path))]


def _file_findings(check: str, error: FedSimError) -> list[CheckFinding]:
    """Every fault of a file in the order of its lines."""
    faults = [fault.message for fault in error.faults] if isinstance(error, ConfigFileError) else [str(error)]
    return [failure_from_message(check, fault) for fault in faults[:MAX_FAULTS]]


# What only shows when the files of several parties are at hand: do they fit each other?


@dataclass(frozen=True, eq=False)
class PartyFiles:
    """Parties of one job whose files could be read."""

    job: Job
    files: Sequence[PartyFile]


def check_distinct_files(company: PartyFiles) -> Iterator[CheckFinding]:
    """No party twice, no folder for two."""
    by_party: dict[object, PartyFile] = {}
    by_folder: dict[Path, PartyFile] = {}
    for own in company.files:
        twin, neighbour = by_party.setdefault(own.party, own), by_folder.setdefault(own.folder.absolute(), own)
        if twin is not own:
            yield failure("files", f"{twin.path} and {own.path} are both of {own.party}", "check one of them")
        elif neighbour is not own:
            yield failure("files", f"{neighbour.path} and {own.path} name one folder", "give every party a folder")
    here = f"{len(by_party)} of {len(company.job.parties)} parties"
    yield ok("files", here)


def check_same_key(company: PartyFiles) -> Iterator[CheckFinding]:
    """Both sides of every list have the same key."""
    sides: dict[str, dict[str, PartyFile]] = {}
    for own in company.files:
        for name, found in key_fingerprints(company.job, own).items():
            sides.setdefault(name, {}).setdefault(found, own)
    for name, prints in sides.items():
        if len(prints) > 1:
            paths = " and ".join(str(own.linkage.key) for own in prints.values() if own.linkage)
            yield failure(
                "linkage keys", f"for {name} two keys differ: {paths}", "copy one to the other over a safe way"
            )
    if all(len(prints) == 1 for prints in sides.values()):
        yield ok("linkage keys", "alike")


def check_same_authority(company: PartyFiles) -> Iterator[CheckFinding]:
    """All certificates come from one folder of `fedsim certs`."""
    trusted = [(own, _authorities(own)) for own in company.files]
    known = [(own, found) for own, found in trusted if found]
    for (one, first), (other, second) in combinations(known, 2):
        if not first & second:
            yield failure(
                "authorities",
                f"{one.party} and {other.party} trust different authorities",
                "give all parties files of one folder of `fedsim certs`",
            )
            return
    yield ok("authorities", "alike")


def _authorities(own: PartyFile) -> set[bytes]:
    """None where they cannot be read, which is told with the party."""
    try:
        return set(map(certificate_pem, read_certificates(own.tls.authority))) if own.tls else set()
    except FedSimError:
        return set()
