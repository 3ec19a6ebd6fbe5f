"""The machine: software, processors, memory, disk, and the folder that a party writes to."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fedsim.party.checks.finding import Finding, fails, ok, telling, warning
from fedsim.party.checks.subject import Case, Place
from fedsim.party.job import Job
from fedsim.party.run_folder import LOCK, run_path
from fedsim.protocol.parties import Role
from fedsim.version import VERSION

# Packages by the name they are imported under; none of them is imported here, for some take seconds.
PACKAGES = {"numpy": "numpy", "polars": "polars", "grpc": "grpcio", "torch": "torch"}
REINSTALL = "install FedSim again: pip install fedsim-vfl"
WRITABLE_BY_OTHERS = 0o022
ROOM = 3  # times what is needed should be free


def software(_: Job | None) -> Iterator[Finding]:
    """What all parties must have alike, and what must be there."""
    found = {"Python": platform.python_version(), "fedsim": VERSION}
    for module, package in PACKAGES.items():
        try:
            found[module] = version(package)
        except PackageNotFoundError:
            found[module] = ""
        if find_spec(module) is None or not found[module]:
            yield fails("software", f"the package {package} is not installed", REINSTALL)
    yield telling("software", ", ".join(f"{name} {number}" for name, number in found.items() if number))


def processors(job: Job | None) -> Iterator[Finding]:
    """As many as the job has threads."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if job and job.training.threads > here:
        yield warning(
            "processors",
            f"training.threads is {job.training.threads}, and this machine has {here} processors",
            "lower it in the job: more threads than processors are slow",
        )
    else:
        yield ok("processors", f"{here}")


def folder(place: Place) -> Iterator[Finding]:
    """The party's folder can be written, and by nobody else."""
    wanted = place.own.folder
    there = _existing(wanted)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        mode = wanted.stat().st_mode if wanted.exists() else 0
    except OSError as error:
        reason = error.strerror or "unknown reason"
        yield fails("folder", f"cannot write in {there}: {reason}", f"mend 'folder' in {place.own.path}, or its rights")
        return
    if mode & WRITABLE_BY_OTHERS:
        yield warning("folder", f"{wanted} can be written by other users of this machine", f"chmod 700 {wanted}")
    yield ok("folder", str(wanted))


def room(case: Case) -> Iterator[Finding]:
    """Disk for checkpoints and lists; memory for the linkage."""
    need, there = case.estimate.disk[case.own.name], _existing(case.own.folder)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return  # the check of the folder says why
    fix = f"make room, or name another folder in {case.own.path}"
    if free < need:
        yield fails("disk", f"{_gigabytes(free)} are free, and about {_gigabytes(need)} are needed", fix)
    elif free < ROOM * need:
        yield warning("disk", f"{_gigabytes(free)} are free, and about {_gigabytes(need)} are needed", fix)
    else:
        yield ok("disk", f"{_gigabytes(free)} free")
    if case.own.role is Role.COORDINATOR:
        yield from _memory(case.estimate.coordinator_memory)


def running(case: Case) -> Iterator[Finding]:
    """No other process of this party is at the job; a lock is looked at for a moment, and left as it was."""
    path = run_path(case.job, case.own) / LOCK
    try:
        with path.open("rb") as lock:
            holder = lock.read(20).decode("ascii", "replace")
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        by = f"process {holder}" if holder.isdecimal() else "another process"
        yield fails("running", f"{by} is at this job already", "let it end, or stop it")
        return
    except (FileNotFoundError, NotADirectoryError):
        pass  # it was never started here
    except OSError as error:
        yield warning("running", f"cannot look at {path}: {error.strerror}", "check whose folder it is")
        return
    yield ok("running", "no other process is at this job")


def _memory(need: int) -> Iterator[Finding]:
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > here:
        yield warning(
            "memory",
            f"this machine has {_gigabytes(here)}, and the linkage needs about {_gigabytes(need)}",
            "run the coordinator on a larger machine, or agree on shorter filters",
        )
    else:
        yield ok("memory", f"{_gigabytes(here)}")


def _existing(wanted: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    for place in (wanted.absolute(), *wanted.absolute().parents):
        if os.path.lexists(place):
            return place
    return Path("/")


def _gigabytes(n_bytes: int) -> str:
    """As disks are sold.

    >>> _gigabytes(1_234_000_000), _gigabytes(56_000_000)
    ('1.2 GB', '0.06 GB')
    """
    return f"{n_bytes / 1e9:.{1 if n_bytes >= 1e9 else 2}f} GB"
