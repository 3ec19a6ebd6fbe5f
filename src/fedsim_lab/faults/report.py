"""Run a fault campaign, keep its results in a folder, and write the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.storage.files import append_durably, atomic_write, ensure_folder
from fedsim_lab.faults import campaign, hostile_frames, processes
from fedsim_lab.faults.campaign import KINDS, Facilities, FaultSchedule

RESULTS_FILE = "results.jsonl"
MAX_GROWTH_MB = 50.0
Result = dict[
    str, Any
]  # a line of the results: name, kind ("schedule", "kills" or "frames"), result, and what happened
REPORT_HEAD = """# Fault report

Written by `fedsim lab faults`. A job of four processes (coordinator, primary, two secondaries) runs under faults drawn
from a seed. Afterwards every party with a network must hold the weights, optimiser state and model of an undisturbed
run, bit for bit. If a fault cannot be survived, a party must refuse, name the cause, and reach the same result once the
cause is repaired. As with an init system, parties that exit because a peer was away are started again.
"""
FRAMES_HEAD = """
## Mutated frames

Frames with flipped, inserted, repeated and missing bytes, sent over TLS to one party of a running job: before
authentication in place of the first message, after it in the session of a party of the job. One in 20 before and one
in 200 after authentication has correct checksums; a party that ends the job because of one is started again. Memory
growth is measured from the first 500 frames on. At the end, the honest parties finish the job.

| role | phase | frames | refused and restarted | crashes | memory growth | same result |
|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class CampaignOptions:
    """Options of ``fedsim lab faults``."""

    schedules: int
    seed: int
    kills: int
    frames: int
    workers: int
    out: Path
    relay: bool = False


def run_campaign(options: CampaignOptions, report: Callable[[str], None]) -> list[Result]:
    """Run the trials that have not passed yet, and return the newest result of every trial in the folder."""
    results, facilities = ensure_folder(options.out) / RESULTS_FILE, Facilities.find()
    held = {result["name"] for result in load_results(results) if result["result"] != "violated"}
    missing = [trial for trial in _trials(options, facilities) if trial.name not in held]
    if missing and facilities.clock:
        processes.preload_clock_shim(options.out)
    jobs = options.out / "jobs"
    expected = {
        epochs: campaign.undisturbed_hashes(_free_folder(jobs / f"undisturbed-{epochs}"), epochs)
        for epochs in sorted({trial.epochs for trial in missing})
    }
    with ThreadPoolExecutor(options.workers) as threads:
        running = {
            threads.submit(trial.run, _free_folder(jobs / trial.name), expected[trial.epochs]): trial.name
            for trial in missing
        }
        for done in as_completed(running):
            result = {"name": running[done], **done.result()}
            append_durably(results, (json.dumps(result) + "\n").encode())
            report(f"{result['name']}: {result['result']} {result['fault'].partition(chr(10))[0]}".rstrip())
    return load_results(results)


class Trial(NamedTuple):
    """One job of the campaign; ``run`` takes its folder and the hashes of an undisturbed run."""

    name: str
    epochs: int
    run: Callable[[Path, Mapping[str, str]], Result]


def _trials(options: CampaignOptions, facilities: Facilities) -> Iterator[Trial]:
    seeds = range(options.seed, options.seed + options.schedules)
    schedules = [campaign.draw_schedule(seed, facilities, relay=options.relay) for seed in seeds]
    if options.kills:
        schedules.append(campaign.draw_kills(options.kills, options.seed))
    for schedule in schedules:
        yield Trial(schedule.name, schedule.epochs, partial(_run_schedule, schedule, facilities))
    if options.frames:
        for role in hostile_frames.TARGETS:
            for phase in (hostile_frames.BEFORE, hostile_frames.AFTER):
                name = f"frames-{options.frames}-{role}-{phase.split()[0]}"
                yield Trial(name, campaign.EPOCHS, partial(_attack, role, phase, options))


def _run_schedule(schedule: FaultSchedule, facilities: Facilities, folder: Path, expected: Mapping[str, str]) -> Result:
    outcome = campaign.run_schedule(schedule, folder, expected, facilities)
    return {"kind": "kills" if schedule.kills else "schedule", **asdict(outcome)}


def _attack(role: str, phase: str, options: CampaignOptions, folder: Path, expected: Mapping[str, str]) -> Result:
    found = hostile_frames.attack_role(role, phase, options.frames, folder, expected, options.seed)
    held = found.same_result and not found.crashes and found.growth_mb < MAX_GROWTH_MB
    return {"kind": "frames", "result": "held" if held else "violated", "fault": "", **asdict(found)}


def load_results(path: Path) -> list[Result]:
    """Return the newest result of every trial."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return list({result["name"]: result for result in map(json.loads, lines)}.values())


def write_fault_report(results: Sequence[Result], path: Path) -> None:
    """Write the report as Markdown."""
    with atomic_write(path) as part:
        part.write_text("\n".join(_report_lines(results)) + "\n", encoding="utf-8")


def summary_lines(results: Sequence[Result]) -> Iterator[str]:
    """Return what was tried and what passed, one line per kind of trial."""
    count = Counter(result["result"] for result in results if result["kind"] == "schedule")
    yield (
        f"{count.total()} random schedules: {count['same']} ended with the same result without help, "
        f"{count['repaired']} after a refusal and its repair, {count['violated']} lost, wrong or unexplained."
    )
    for result in results:
        if result["kind"] == "kills":
            kills, epochs = result["applied"].count("kill"), result["schedule"]["epochs"]
            yield f"One job of {epochs} epochs with {kills} SIGKILL on links that cut connections: {result['result']}."
    frames = [result for result in results if result["kind"] == "frames"]
    if frames:
        sent, crashes = (sum(result[name] for result in frames) for name in ("frames", "crashes"))
        growth = max(result["growth_mb"] for result in frames)
        yield f"{sent:,} mutated frames: {crashes} crashes, memory growth up to {growth:.0f} MB."


def _report_lines(results: Sequence[Result]) -> Iterator[str]:
    yield REPORT_HEAD
    yield from (f"* {line}" for line in summary_lines(results))
    yield from _schedule_lines([result for result in results if result["kind"] == "schedule"])
    frames = sorted((result for result in results if result["kind"] == "frames"), key=lambda result: result["name"])
    if frames:
        yield FRAMES_HEAD
        for each in frames:
            cells = (each["role"], each["phase"], f"{each['frames']:,}", each["refusals"], each["crashes"])
            memory, same = f"{each['growth_mb']:.0f} MB", "yes" if each["same_result"] else "no"
            yield f"| {' | '.join(map(str, (*cells, memory, same)))} |"
    for result in results:
        if result["result"] == "violated":
            yield f"\n**Violated:** {result['name']}: {result['fault'].partition(chr(10))[0][:300]}"


def _schedule_lines(schedules: Sequence[Result]) -> Iterator[str]:
    if not schedules:
        return
    applied = Counter(kind for result in schedules for kind in result["applied"])
    refused = Counter(kind for result in schedules for kind in result["refusals"])
    yield "\n## Random schedules\n\n| fault | what it does | times | refused until repaired |\n|---|---|---|---|"
    for kind, meaning in KINDS.items():
        yield f"| {kind} | {meaning} | {applied[kind] or 'not tried'} | {refused[kind]} |"
    networks = Counter(result["schedule"]["network"] for result in schedules)
    seeds = [result["schedule"]["seed"] for result in schedules]
    over = " and ".join(f"{number} schedules over {name}" for name, number in sorted(networks.items()))
    restarts = sum(result["restarts"] for result in schedules)
    yield (
        f"\n{over}; {restarts} restarts after an exit. Seeds {min(seeds)} to {max(seeds)}: "
        "`fedsim lab faults --schedules 1 --seed N` replays one."
    )


def _free_folder(path: Path) -> Path:
    """Return a path that does not exist yet."""
    numbers = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000)))
    return next(free for free in numbers if not free.exists())
