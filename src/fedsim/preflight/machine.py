"""Checks of the machine and its network: software, processors, disk, memory, port and peers."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fedsim.config.job import Job
from fedsim.preflight.finding import (
    CheckedParty,
    CheckFinding,
    PartyInJob,
    failure,
    failure_from_message,
    info,
    ok,
    warning,
)
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import Credentials, split_address, tls_failure_reason
from fedsim.runs.run_folder import LOCK_FILE, run_path
from fedsim.version import VERSION

# The machine: software, processors, memory, disk, and the folder that a party writes to


# Packages by the name they are imported under; none of them is imported here, for some take seconds.
PACKAGES = {"numpy": "numpy", "polars": "polars", "grpc": "grpcio", "torch": "torch"}
REINSTALL_HINT = "install FedSim again: pip install fedsim-vfl"
WRITABLE_BY_OTHERS = 0o022
DISK_HEADROOM = 3  # times what is needed should be free


def check_software(_: Job | None) -> Iterator[CheckFinding]:
    """What all parties must have alike, and what must be there."""
    found = {"Python": platform.python_version(), "fedsim": VERSION}
    for module, package in PACKAGES.items():
        try:
            found[module] = version(package)
        except PackageNotFoundError:
            found[module] = ""
        if find_spec(module) is None or not found[module]:
            yield failure("software", f"the package {package} is not installed", REINSTALL_HINT)
    yield info("software", ", ".join(f"{name} {number}" for name, number in found.items() if number))


def check_processors(job: Job | None) -> Iterator[CheckFinding]:
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


def check_folder(place: CheckedParty) -> Iterator[CheckFinding]:
    """The party's folder can be written, and by nobody else."""
    wanted = place.own.folder
    there = _nearest_existing(wanted)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        mode = wanted.stat().st_mode if wanted.exists() else 0
    except OSError as error:
        reason = error.strerror or "unknown reason"
        yield failure(
            "folder", f"cannot write in {there}: {reason}", f"mend 'folder' in {place.own.path}, or its rights"
        )
        return
    if mode & WRITABLE_BY_OTHERS:
        yield warning("folder", f"{wanted} can be written by other users of this machine", f"chmod 700 {wanted}")
    yield ok("folder", str(wanted))


def check_disk(case: PartyInJob) -> Iterator[CheckFinding]:
    """Disk for checkpoints and lists; memory for the linkage."""
    need, there = case.estimate.disk[case.own.name], _nearest_existing(case.own.folder)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return  # the check of the folder says why
    fix = f"make room, or name another folder in {case.own.path}"
    if free < need:
        yield failure("disk", f"{_gigabytes(free)} are free, and about {_gigabytes(need)} are needed", fix)
    elif free < DISK_HEADROOM * need:
        yield warning("disk", f"{_gigabytes(free)} are free, and about {_gigabytes(need)} are needed", fix)
    else:
        yield ok("disk", f"{_gigabytes(free)} free")
    if case.own.role is Role.COORDINATOR:
        yield from _check_memory(case.estimate.coordinator_memory)


def check_not_running(case: PartyInJob) -> Iterator[CheckFinding]:
    """No other process of this party is at the job; a lock is looked at for a moment, and left as it was."""
    path = run_path(case.job, case.own) / LOCK_FILE
    try:
        with path.open("rb") as lock:
            holder = lock.read(20).decode("ascii", "replace")
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        by = f"process {holder}" if holder.isdecimal() else "another process"
        yield failure("running", f"{by} is at this job already", "let it end, or stop it")
        return
    except (FileNotFoundError, NotADirectoryError):
        pass  # it was never started here
    except OSError as error:
        yield warning("running", f"cannot look at {path}: {error.strerror}", "check whose folder it is")
        return
    yield ok("running", "no other process is at this job")


def _check_memory(need: int) -> Iterator[CheckFinding]:
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > here:
        yield warning(
            "memory",
            f"this machine has {_gigabytes(here)}, and the linkage needs about {_gigabytes(need)}",
            "run the coordinator on a larger machine, or agree on shorter filters",
        )
    else:
        yield ok("memory", f"{_gigabytes(here)}")


def _nearest_existing(wanted: Path) -> Path:
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


# The network: is the own port free, and do the peers that are dialled answer?


CALL_TIMEOUT_SECONDS = 3.0  # of patience with each step of a call
DIALLED_ROLES = {
    Role.COORDINATOR: (),
    Role.PRIMARY: (Role.COORDINATOR,),
    Role.SECONDARY: (Role.COORDINATOR, Role.PRIMARY),
}
OTHER_MACHINE_HINT = "check it on the machine it is for, or give [network] listen in the party file"
_PORT_ERRORS = {
    errno.EADDRINUSE: ("is in use", "stop what listens there, or agree on another port"),
    errno.EADDRNOTAVAIL: ("is no address of this machine", OTHER_MACHINE_HINT),
    errno.EACCES: ("is not for ordinary users", "take a port above 1023"),
}


def check_port(case: PartyInJob) -> Iterator[CheckFinding]:
    """Whoever is dialled can listen; nothing is sent or answered."""
    if case.own.role is Role.SECONDARY:
        return
    address = case.own.network.listen or case.job.address_of(case.own.party)
    host, number = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(place)
    except (socket.gaierror, UnicodeError):
        yield failure("port", f"the host of {address} is unknown here", OTHER_MACHINE_HINT)
    except OSError as error:
        what, fix = _PORT_ERRORS.get(error.errno or 0, (f"cannot be used ({error.strerror})", OTHER_MACHINE_HINT))
        yield failure("port", f"{address} {what}", fix)
    else:
        yield ok("port", f"{address} is free")


@dataclass(frozen=True)
class PeerCheck:
    """Calls the peers that a party dials: a TLS handshake, in which only the certificate is shown."""

    credentials: Credentials | None

    def __call__(self, case: PartyInJob) -> Iterator[CheckFinding]:
        dialled = [peer for peer in case.job.parties if peer.role in DIALLED_ROLES[case.own.role]]
        if dialled and self.credentials is None:
            yield warning("peers", "nobody was called, for there is no certificate to show", "see to the certificate")
        elif self.credentials:
            yield from (_call_peer(case.job.address_of(peer), self.credentials, peer) for peer in dialled)


def _call_peer(address: str, credentials: Credentials, peer: Party) -> CheckFinding:
    fault = tls_failure_reason(address, credentials, peer, CALL_TIMEOUT_SECONDS)
    if fault:
        return failure_from_message("peers", fault)
    return info("peers", f"{peer} answers at {address}{_ping(address)}")


def _ping(address: str) -> str:
    """How long a connection takes to stand: one round trip."""
    began = time.perf_counter()
    try:
        socket.create_connection(split_address(address), timeout=CALL_TIMEOUT_SECONDS).close()
    except OSError:
        return ""
    return f", ping {1000 * (time.perf_counter() - began):.1f} ms"
