"""Checks of the machine and its network: software, processors, disk, memory, port and peers."""

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
from fedsim.preflight.finding import CheckedParty, CheckFinding, PartyInJob, failure, info, message_finding, ok, warning
from fedsim.protocol.messages import Role
from fedsim.protocol.tls import Credentials, split_address, tls_failure_reason
from fedsim.runs.run_folder import LOCK_FILE, run_path
from fedsim.version import VERSION

# Packages by module name; they are not imported here, because some take seconds.
PACKAGES = {"numpy": "numpy", "polars": "polars", "grpc": "grpcio", "torch": "torch"}
WRITABLE_BY_OTHERS = 0o022
DISK_HEADROOM = 3  # warn if less than this multiple of the needed disk space is free


def check_software(_: Job | None) -> Iterator[CheckFinding]:
    """Check that the required packages are installed, and report their versions."""
    versions = {"Python": platform.python_version(), "fedsim": VERSION}
    for module, package in PACKAGES.items():
        try:
            versions[module] = version(package)
        except PackageNotFoundError:
            versions[module] = ""
        if find_spec(module) is None or not versions[module]:
            message = f"the package {package} is not installed"
            yield failure("software", message, "reinstall FedSim: pip install fedsim-vfl", code="missing-package")
    yield info("software", ", ".join(f"{name} {number}" for name, number in versions.items() if number))


def check_processors(job: Job | None) -> Iterator[CheckFinding]:
    """Check that there is a processor for every thread of the job."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if job and job.training.threads > available:
        message = f"training.threads is {job.training.threads}, but this machine has {available} processors"
        fix = "lower it in the job; more threads than processors are slow"
        yield warning("processors", message, fix, code="too-many-threads")
    else:
        yield ok("processors", f"{available}")


def check_folder(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that the party's folder is writable, and only for its owner."""
    folder = place.own.folder
    existing = _nearest_existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        mode = folder.stat().st_mode if folder.exists() else 0
    except OSError as error:
        message = f"cannot write to {existing}: {error.strerror or 'unknown reason'}"
        fix = f"correct 'folder' in {place.own.path}, or its permissions"
        yield failure("folder", message, fix, code="not-writable")
        return
    if mode & WRITABLE_BY_OTHERS:
        message = f"{folder} is writable for other users of this machine"
        yield warning("folder", message, f"chmod 700 {folder}", code="writable-by-others")
    yield ok("folder", str(folder))


def check_disk(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check disk space for checkpoints and links, and at the coordinator memory for the linkage."""
    needed = case.estimate.disk[case.own.name]
    try:
        free = shutil.disk_usage(_nearest_existing(case.own.folder)).free
    except OSError:
        return  # reported by the check of the folder
    if free < DISK_HEADROOM * needed:
        report = failure if free < needed else warning
        message = f"{_gigabytes(free)} are free, about {_gigabytes(needed)} are needed"
        yield report("disk", message, f"free some space, or set another folder in {case.own.path}", code="disk-full")
    else:
        yield ok("disk", f"{_gigabytes(free)} free")
    if case.own.role is not Role.COORDINATOR:
        return
    memory, needed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), case.estimate.coordinator_memory
    if needed > memory:
        message = f"this machine has {_gigabytes(memory)}, but the linkage needs about {_gigabytes(needed)}"
        fix = "run the coordinator on a larger machine, or use fewer bits in the schema"
        yield warning("memory", message, fix, code="too-little-memory")
    else:
        yield ok("memory", f"{_gigabytes(memory)}")


def check_not_running(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that no other process of this party runs the job, without taking its lock."""
    path = run_path(case.job, case.own) / LOCK_FILE
    try:
        with path.open("rb") as lock:
            holder = lock.read(20).decode("ascii", "replace")
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        process = f"process {holder}" if holder.isdecimal() else "another process"
        yield failure("running", f"{process} is running this job", "wait for it, or stop it", code="already-running")
        return
    except (FileNotFoundError, NotADirectoryError):
        pass  # the job was never started here
    except OSError as error:
        yield warning("running", f"cannot read {path}: {error.strerror}", "check the owner of the folder")
        return
    yield ok("running", "no other process is running this job")


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    parents = (folder.absolute(), *folder.absolute().parents)
    return next((path for path in parents if os.path.lexists(path)), Path("/"))


def _gigabytes(n_bytes: int) -> str:
    """Format a size in decimal gigabytes.

    >>> _gigabytes(1_234_000_000), _gigabytes(56_000_000)
    ('1.2 GB', '0.06 GB')
    """
    return f"{n_bytes / 1e9:.{1 if n_bytes >= 1e9 else 2}f} GB"


# The network

CALL_TIMEOUT_SECONDS = 3.0
DIALLED_ROLES = {Role.PRIMARY: (Role.COORDINATOR,), Role.SECONDARY: (Role.COORDINATOR, Role.PRIMARY)}
OTHER_MACHINE_HINT = "run this check on the party's machine, or set network.listen in the party file"
_PORT_ERRORS = {
    errno.EADDRINUSE: ("is in use", "stop the program that listens there, or use another port"),
    errno.EADDRNOTAVAIL: ("is not an address of this machine", OTHER_MACHINE_HINT),
    errno.EACCES: ("requires administrator rights", "use a port above 1023"),
}


def check_port(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that a party that accepts connections can listen at its address."""
    if case.own.role is Role.SECONDARY:
        return
    address = case.own.network.listen or case.job.address_of(case.own.party)
    host, number = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except (socket.gaierror, UnicodeError):
        yield failure("port", f"cannot resolve the host of {address}", OTHER_MACHINE_HINT, code="unknown-host")
    except OSError as error:
        what, fix = _PORT_ERRORS.get(error.errno or 0, (f"cannot be used ({error.strerror})", OTHER_MACHINE_HINT))
        yield failure("port", f"{address} {what}", fix, code="port-unavailable")
    else:
        yield ok("port", f"{address} is free")


@dataclass(frozen=True)
class PeerCheck:
    """Connects to the parties that a party calls: a TLS handshake that shows its certificate only."""

    credentials: Credentials | None

    def __call__(self, case: PartyInJob) -> Iterator[CheckFinding]:
        peers = [peer for peer in case.job.parties if peer.role in DIALLED_ROLES.get(case.own.role, ())]
        if self.credentials is None:
            message = "no connection was tried, because there is no valid certificate"
            if peers:
                yield warning("peers", message, "fix the certificate first", code="no-certificate")
            return
        for peer in peers:
            address = case.job.address_of(peer)
            reason = tls_failure_reason(address, self.credentials, peer, CALL_TIMEOUT_SECONDS)
            if reason:
                yield message_finding("peers", reason, code="peer-unreachable")
                continue
            started = time.perf_counter()
            try:
                socket.create_connection(split_address(address), timeout=CALL_TIMEOUT_SECONDS).close()
                latency = f", latency {1000 * (time.perf_counter() - started):.1f} ms"
            except OSError:
                latency = ""
            yield info("peers", f"{peer} answers at {address}{latency}")
