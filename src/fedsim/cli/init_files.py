"""Where ``fedsim init`` writes, what it never replaces, and which commands come next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedsim.errors import FileError
from fedsim.linkage.encoding import Key
from fedsim.linkage.whole_file import whole_file
from fedsim.party.proposed_files import KEY, Plan, job_text, party_text
from fedsim.party.shipped_schemas import FILES, shipped_text

JOB, SCHEMAS = "job.toml", "schemas"


@dataclass(frozen=True)
class Targets:
    """The files to write: the job, and those of the parties whose tables are at hand; with both, the coordinator's."""

    folder: Path
    parties: Mapping[str, str]
    at_hand: frozenset[str]

    @property
    def roles(self) -> list[str]:
        """Roles whose party files are written, in the order in which they start."""
        return [role for role in self.parties if role in self.at_hand or len(self.at_hand) == 2]

    def file_of(self, role: str) -> str:
        """The name of a party's file."""
        return f"{self.parties[role]}.toml"

    def check(self, *, force: bool) -> None:
        """Refuse to replace anything, and a folder that cannot be written."""
        nearest = next(path for path in (self.folder.absolute(), *self.folder.absolute().parents) if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise FileError(f"{nearest} is no folder that this user may write; choose another with --out")
        there = [name for name in (JOB, *map(self.file_of, self.roles)) if (self.folder / name).exists()]
        if there and not force:
            raise FileError(
                f"{', '.join(there)} in {self.folder.absolute()} would be replaced; say --force or another --out"
            )

    def write(self, plan: Plan) -> list[str]:
        """Write everything; a key that is there is kept, for it may be the only copy. Returns what was written."""
        texts = {JOB: job_text(plan)}
        texts |= {self.file_of(role): party_text(plan, role, self.folder) for role in self.roles}
        texts |= {f"{SCHEMAS}/{FILES[name]}": shipped_text(name) for name in FILES}
        written = [JOB, *map(self.file_of, self.roles), f"{SCHEMAS}/"]
        with made_folder(self.folder / SCHEMAS), ExitStack() as together:
            for name, text in texts.items():
                part = together.enter_context(whole_file(self.folder / name))
                part.write_text(text, encoding="utf-8")
            if "primary" in self.at_hand and not (self.folder / KEY).exists():
                Key.generate().write(self.folder / KEY)
                written.append(KEY)
        return written


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """The folder and those above it, made where they are not there; they go again where the block is broken off."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or "the disk refused"
        raise FileError(f"the folder {folder} cannot be written ({reason}); choose another --out") from error
    try:
        yield
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise


def next_steps(plan: Plan, targets: Targets) -> Iterator[str]:
    """The commands that follow, as one would type them."""
    files = [targets.file_of(role) for role in targets.roles]
    names = plan.names()
    certs = " ".join(f"--{role} {name}" for role, name in names.items())
    here = [] if targets.folder == Path() else [f"cd {shlex.quote(str(targets.folder))}"]
    if plan.whole:
        yield "\nNext, to try it, all parties in one process:"
        tried = [f"fedsim approve {JOB} {file} --yes" for file in files]
        yield from _commands([*here, *tried, f"fedsim train {JOB} {' '.join(files)}"])
        yield "\nThen, each party on its own machine (fedsim check tells what is missing):"
        yield from _commands([f"fedsim certs {certs}", f"fedsim check {JOB} {files[-1]}"])
        return
    yield f"\nNext: fill in what is marked in {JOB}, agree on it with the other side, then"
    copy = (
        f"# get {KEY} from the primary, over a safe way"
        if "secondary" in plan.own
        else f"# give {KEY} to the secondary, over a safe way; never to the coordinator"
    )
    yield from _commands([*here, copy, f"fedsim check {JOB} {files[0]}", f"fedsim approve {JOB} {files[0]}"])


def _commands(lines: list[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines)
