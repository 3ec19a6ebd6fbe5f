"""Random fault schedules for a job of four processes; a schedule can be replayed from its seed.

After every schedule, the job must end with the weights of an undisturbed run. If a fault cannot be survived, such as a
full disk or a truncated file, the party must exit with the cause, and reach those weights after the repair.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from fedsim.errors import FedSimError
from fedsim.splitnn.party_model import CheckpointStore
from fedsim_lab.faults import processes
from fedsim_lab.faults.local_job import CITY, NOTARY, RELAY, RENTALS, SCHOOLS, LocalJob, create_local_job
from fedsim_lab.faults.network import NamespaceNetwork, Network, ProxyNetwork

PARTIES = (NOTARY, CITY, RENTALS, SCHOOLS)
KINDS = {
    "kill": "SIGKILL, started again after up to 1.5 s",
    "pause": "SIGSTOP for up to 4 s",
    "partition": "nothing passes, to one peer or to all, for up to 5 s",
    "slow link": "a few kilobytes per second, or 50 ms per piece, for up to 5 s",
    "lossy link": "packets dropped by a short queue, or connections cut in mid-frame",
    "clock jump": "the party's clock an hour or a day ahead, or two days behind, for up to 5 s",
    "disk full": "the party's folder, a file system of its own, has no space left for up to 3 s",
    "truncation": "SIGKILL, and one of the files written last loses its end",
}
NEEDS_ROOT, NEEDS_SHIM = "disk full", "clock jump"
EPOCHS, STEPS_PER_EPOCH = 2, 6
CLOCK_JUMPS = (3600, 86_400, -2 * 86_400)
DISK_BYTES = 96 << 20
MAX_SECONDS, MAX_RESTARTS = 600.0, 60
HEARTBEAT_SECONDS = 1.0
REFUSED, PEER_AWAY = 2, 3  # exit codes
# How long a party that starts after all others have finished looks for them, instead of 10 to 120 seconds.
SHORT_WAITS = (
    processes.setting("fedsim.runtime.linking", "FINISH_SECONDS", 3.0),
    processes.setting("fedsim.runtime.linking", "FAILURE_NOTICE_SECONDS", 3.0),
    processes.setting("fedsim.runtime.secondary", "GRACE_SECONDS", 4.0),
)
DISK_WORDS, CLOCK_WORDS = ("cannot write", "No space left"), ("certificate", "clock")


class ViolationError(FedSimError):
    """A schedule ended with a lost or wrong result, or with a refusal that does not name its cause."""


@dataclass(frozen=True)
class Facilities:
    """What this machine supports; unsupported kinds of faults are not tried."""

    namespaces: bool
    clock: bool

    @classmethod
    def find(cls) -> Self:
        """Return the facilities of this machine."""
        return cls(NamespaceNetwork.available(), processes.can_shift_clock())

    @property
    def kinds(self) -> list[str]:
        """The kinds of faults to draw from."""
        possible = {NEEDS_ROOT: self.namespaces, NEEDS_SHIM: self.clock}
        return [kind for kind in KINDS if possible.get(kind, True)]


@dataclass(frozen=True)
class Fault:
    """One fault: it begins ``delay`` seconds after the primary's checkpoint of ``step``."""

    kind: str
    party: str
    step: int
    delay: float
    seconds: float
    peer: str | None = None  # of a partition from one peer
    amount: float = 0.0  # seconds of a clock jump, or the share that is left of a truncated file


@dataclass(frozen=True)
class FaultSchedule:
    """The faults of one job, in the order in which they begin."""

    seed: int
    network: str
    wait_seconds: int
    faults: tuple[Fault, ...]
    epochs: int = EPOCHS
    kills: int = 0  # of the one long job

    @property
    def name(self) -> str:
        """The name of the schedule in results and folders."""
        kind = RELAY if self.network == RELAY else "schedule"
        return f"kills-{self.kills}-{self.seed}" if self.kills else f"{kind}-{self.seed}"


def draw_schedule(seed: int, facilities: Facilities, *, relay: bool = False) -> FaultSchedule:
    """Return the schedule for a seed; it depends only on the arguments."""
    rng = np.random.default_rng(seed)
    network = "namespaces" if facilities.namespaces and rng.random() < 0.5 else "proxy"
    network = RELAY if relay else network
    steps = np.sort(rng.integers(-1, EPOCHS * STEPS_PER_EPOCH, rng.integers(2, 6)))
    faults = tuple(_draw_fault(rng, str(rng.choice(facilities.kinds)), int(step), network) for step in steps)
    return FaultSchedule(seed, network, int(rng.choice([20, 60])), faults)


def draw_kills(kills: int, seed: int) -> FaultSchedule:
    """Return a schedule that kills the parties of one long job this many times, on links that are always lossy."""
    rng, epochs = np.random.default_rng(seed), max(EPOCHS, -(-2 * kills // STEPS_PER_EPOCH))
    lossy = [Fault("lossy link", name, -1, 0.0, 1e6) for name in ProxyNetwork.parties]
    steps = np.sort(rng.integers(-1, (epochs - 1) * STEPS_PER_EPOCH, kills))  # no party has finished by then
    victims = rng.permutation(np.resize(PARTIES, kills))
    deaths = (
        Fault("kill", str(name), int(step), rng.uniform(0, 0.3), 0.0) for name, step in zip(victims, steps, strict=True)
    )
    return FaultSchedule(seed, "proxy", 60, (*lossy, *deaths), epochs, kills)


def _draw_fault(rng: np.random.Generator, kind: str, step: int, network: str) -> Fault:
    on_links = kind in ("partition", "slow link", "lossy link")
    parties: Sequence[str] = ProxyNetwork.parties if on_links and network == "proxy" else PARTIES
    if network == RELAY and (on_links or kind in ("kill", "pause")):
        parties = (RELAY,) if on_links else (*PARTIES, RELAY)
    party = str(rng.choice(parties))
    peers = [name for name in PARTIES if name != party and CITY in (name, party)]
    longest = {"kill": 1.5, "pause": 4.0, "disk full": 3.0, "truncation": 0.5}.get(kind, 5.0)
    amount = float(rng.choice(CLOCK_JUMPS)) if kind == "clock jump" else float(rng.uniform(0, 1))
    peer = str(rng.choice(peers)) if kind == "partition" and rng.random() < 0.5 else None
    return Fault(kind, party, step, rng.uniform(0, 0.3), rng.uniform(0.2, longest), peer, amount)


@dataclass
class Outcome:
    """What a schedule did and how the job ended: ``same``, ``repaired`` or ``violated``."""

    schedule: FaultSchedule
    result: str = "same"
    applied: list[str] = field(default_factory=list)  # the kinds of faults that met a running party
    refusals: list[str] = field(default_factory=list)  # kinds of faults that a party refused to survive
    restarts: int = 0
    fault: str = ""
    seconds: float = 0.0


def undisturbed_hashes(folder: Path, epochs: int = EPOCHS) -> dict[str, str]:
    """Run the job without any fault and return the hashes of its result."""
    job = create_local_job(folder, n_secondaries=2, training={"epochs": epochs})
    with processes.party_processes(job) as parties:
        parties.start()
        return parties.finish(MAX_SECONDS)


def run_schedule(schedule: FaultSchedule, folder: Path, expected: Mapping[str, str], facilities: Facilities) -> Outcome:
    """Run one job under a schedule in a new folder, which is kept if the schedule was violated."""
    outcome, began = Outcome(schedule), time.monotonic()
    try:
        with _prepare(schedule, folder, facilities) as run:
            run.outcome = outcome
            run.carry_out(expected)
        outcome.result = "repaired" if outcome.refusals else "same"
        shutil.rmtree(folder)
    except (ViolationError, processes.ProcessError) as error:
        outcome.result, outcome.fault = "violated", f"{error.code}: {error}"
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


@contextmanager
def _prepare(schedule: FaultSchedule, folder: Path, facilities: Facilities) -> Iterator[_ScheduleRun]:
    """Create the job, its network, small disks and processes, and remove all but the job afterwards."""
    with ExitStack() as stack:
        settings: dict[str, Any] = {
            "training": {"epochs": schedule.epochs},
            "network": {"wait_seconds": schedule.wait_seconds},
        }
        hooks = {name: [*SHORT_WAITS, processes.heartbeat(HEARTBEAT_SECONDS)] for name in PARTIES}
        network: Network
        if schedule.network == "namespaces":
            network = namespaces = NamespaceNetwork(str(schedule.seed), PARTIES)
            job = create_local_job(folder, n_secondaries=2, **settings, **namespaces.listen_addresses())
            for name in PARTIES:
                hooks[name].append(namespaces.enter(name))
        else:
            job = create_local_job(folder, n_secondaries=2, relay=schedule.network == RELAY, **settings)
            network = ProxyNetwork(job)
        stack.callback(network.close)
        for name in {fault.party for fault in schedule.faults if fault.kind == "disk full"}:
            stack.enter_context(_own_disk(folder / f"{name}-run"))
        if facilities.clock:
            for name in PARTIES:
                processes.set_clock(folder / f"{name}.clock", 0)
                hooks[name].append(processes.shifted_clock(folder / f"{name}.clock"))
        before = {name: processes.each(*found) for name, found in hooks.items()}
        parties = stack.enter_context(processes.party_processes(job, before))
        yield _ScheduleRun(job, schedule, network, parties)


@contextmanager
def _own_disk(folder: Path) -> Iterator[None]:
    """Put a folder on its own small file system."""
    aside = folder.with_name(f"{folder.name}-before")
    folder.rename(aside)
    folder.mkdir()
    options = f"size={DISK_BYTES},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)  # noqa: S603, S607
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield
        shutil.copytree(folder, aside, dirs_exist_ok=True)  # a violated schedule keeps its files
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S603, S607


class _Damage(NamedTuple):
    """A reason for which a party may refuse: words of which its message must contain one, and the repair."""

    kind: str
    words: tuple[str, ...]
    repair: Callable[[], None]


class _ScheduleRun:
    """One job and its supervisor, which restarts parties as an init system does and repairs what was broken."""

    def __init__(
        self, job: LocalJob, schedule: FaultSchedule, network: Network, parties: processes.PartyProcesses
    ) -> None:
        self.job, self.schedule, self.network, self.parties = job, schedule, network, parties
        self.outcome = Outcome(schedule)
        self._endings: list[tuple[float, Callable[[], None]]] = []
        self._down: set[str] = set()  # parties that are kept stopped at the moment
        self._broken: dict[str, list[_Damage]] = {}
        self._peer_refusals: list[str] = []  # refusals of parties that were notified of another's
        self._started: dict[str, float] = {}
        self._read: dict[str, int] = dict.fromkeys((*PARTIES, RELAY), 0)  # how much of a log was judged

    def carry_out(self, expected: Mapping[str, str]) -> None:
        """Run the job to its end, with all faults, and compare its result."""
        self._start(*((RELAY,) if self.schedule.network == RELAY else ()), *PARTIES)
        deadline = time.monotonic() + MAX_SECONDS * max(1, self.schedule.epochs / EPOCHS / 4)
        checkpoints = self.job.checkpoints()
        for fault in self.schedule.faults:
            reached = partial(_has_step, checkpoints, fault.step)
            self._wait_until(reached, deadline)
            self._wait_until(partial(_is_past, time.monotonic() + fault.delay), deadline)
            if self.parties.running[fault.party].code is None:
                self.outcome.applied.append(fault.kind)
                self._begin(fault)
        self._wait_until(lambda: False, deadline)
        if "Traceback" in (logs := self.parties.logs()):
            raise ViolationError(logs[logs.index("Traceback") :][:2000], code="traceback")
        damages = ((name, damage) for name, found in self._broken.items() for damage in found)
        named = any(word in self.parties.output_of(name) for name, damage in damages for word in damage.words)
        if self._peer_refusals and not named:  # a victim may have been killed while it refused
            raise ViolationError(f"no party named the cause of: {self._peer_refusals[0][-2000:]}", code="unexplained")
        if (found := self.job.hashes()) != expected:
            raise ViolationError(f"other weights: {found} instead of {dict(expected)}", code="wrong-weights")

    def _start(self, *names: str) -> None:
        for name in names:
            self._started[name] = time.time()
        self.parties.start(*names)

    def _wait_until(self, happened: Callable[[], bool], deadline: float) -> None:
        """Supervise until an event has happened or all parties have finished successfully."""
        while not happened():
            now = time.monotonic()
            if now > deadline:
                raise ViolationError(f"still running: {self.parties.logs()[-3000:]}", code="too-slow")
            for ending in [ending for ending in self._endings if ending[0] <= now]:
                self._endings.remove(ending)
                ending[1]()
            for name, process in list(self.parties.running.items()):
                if process.code is not None and process.code != 0 and name not in self._down:
                    self._judge_exit(name, process.code)
            if not self._down and all(process.code == 0 for process in self.parties.members.values()):
                return
            time.sleep(0.05)

    def _judge_exit(self, name: str, code: int) -> None:
        """Repair the cause that a party's refusal names, and start the party again."""
        text = self.parties.output_of(name)[self._read[name] :]
        self._read[name] += len(text)
        if code not in (REFUSED, PEER_AWAY):
            raise ViolationError(f"{name} exited with {code}: {text[-2000:]}", code="crashed")
        if code == REFUSED:
            self._judge_refusal(name, text)
        self.outcome.restarts += 1
        if self.outcome.restarts > MAX_RESTARTS:
            raise ViolationError(f"{name} exits again and again: {text[-2000:]}", code="restart-loop")
        ended = [other for other, process in self.parties.running.items() if process.code == 0]
        for each in (name, *(other for other in ended if f"'{other}' did not connect" in text)):
            if each not in self._down:  # a party that ended well, but that another still waits for, starts again, too
                self._down.add(each)
                self._end_after(0.3, partial(self._bring_up, each))

    def _judge_refusal(self, name: str, text: str) -> None:
        named = [damage for damage in self._broken.get(name, []) if any(word in text for word in damage.words)]
        for damage in named:
            self.outcome.refusals.append(damage.kind)
            damage.repair()
        others = [other for other in PARTIES if other != name]
        if not named and any(f"'{other}' stopped" in text for other in others):
            self._peer_refusals.append(text)
        elif not named and not any(f"'{victim}'" in text for victim in self._broken):
            raise ViolationError(f"{name} refused without naming a cause: {text[-2000:]}", code="unexplained")

    def _bring_up(self, name: str) -> None:
        self._down.discard(name)
        self._start(name)

    def _end_after(self, seconds: float, action: Callable[[], None]) -> None:
        self._endings.append((time.monotonic() + seconds, action))

    def _begin(self, fault: Fault) -> None:
        name, process = fault.party, self.parties.running[fault.party]
        match fault.kind:
            case "kill" | "truncation":
                process.kill()
                self._down.add(name)
                if fault.kind == "truncation":
                    self._truncate(fault)
                self._end_after(fault.seconds, lambda: self._bring_up(name))
            case "pause":
                process.send(signal.SIGSTOP)
                self._end_after(fault.seconds, lambda: process.send(signal.SIGCONT))
            case "clock jump":
                clock = self.job.folder / f"{name}.clock"
                processes.set_clock(clock, int(fault.amount))
                self._damage(name, fault.kind, CLOCK_WORDS, lambda: processes.set_clock(clock, 0))
                self._end_after(fault.seconds, lambda: processes.set_clock(clock, 0))
            case "disk full":
                ballast = self.job.folder / f"{name}-run" / "ballast"
                _fill(ballast, leave=int(fault.amount * 40_000))
                self._damage(name, fault.kind, DISK_WORDS, lambda: ballast.unlink(missing_ok=True))
                self._end_after(fault.seconds, lambda: ballast.unlink(missing_ok=True))
            case _:
                self._disturb(fault)
                self._end_after(fault.seconds, lambda: self.network.restore(name))

    def _disturb(self, fault: Fault) -> None:
        if fault.kind == "partition":
            self.network.partition(fault.party, fault.peer)
        elif fault.kind == "slow link":
            self.network.slow_down(fault.party)
        else:
            self.network.lose(fault.party)

    def _truncate(self, fault: Fault) -> None:
        """Truncate one of the four files that the dead process wrote last, and keep a copy for the repair."""
        files = [path for path in (self.job.folder / f"{fault.party}-run").rglob("*") if path.is_file()]
        since = self._started[fault.party]
        newest = sorted(
            (path for path in files if path.stat().st_mtime >= since), key=lambda path: path.stat().st_mtime
        )
        if newest:
            path = newest[-1 - int(4 * fault.amount) % min(4, len(newest))]
            content = path.read_bytes()
            os.truncate(path, int(len(content) * fault.amount))
            names = (path.name, path.parent.name)
            self._damage(fault.party, fault.kind, names, lambda: _put_back(path, content))

    def _damage(self, party: str, kind: str, words: tuple[str, ...], repair: Callable[[], None]) -> None:
        self._broken.setdefault(party, []).append(_Damage(kind, words, repair))


def _has_step(checkpoints: CheckpointStore, step: int) -> bool:
    return max(checkpoints.steps(), default=-1) >= step


def _is_past(moment: float) -> bool:
    return time.monotonic() >= moment


def _put_back(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _fill(path: Path, leave: int) -> None:
    """Fill the file system of a path, leaving only this many bytes free."""
    free = shutil.disk_usage(path.parent).free
    with suppress(OSError), path.open("wb") as file:
        file.write(bytes(max(0, free - leave)))
