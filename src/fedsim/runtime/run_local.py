"""Run all parties of a job in one process, with the same roles and messages over in-process queues."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedsim.config import Job, PartyFile
from fedsim.config.party_file import label_among_features
from fedsim.errors import PeerError, SettingError
from fedsim.protocol.messages import Ledger, LedgerEntry, Role, merge_ledgers
from fedsim.protocol.session import StopSignal
from fedsim.protocol.transport import InProcessTransport, Transport
from fedsim.runs.approval import find_approval
from fedsim.runs.input_record import require_same_inputs
from fedsim.runs.run_folder import is_trained, publish_progress, run_path
from fedsim.runtime import coordinator, primary, secondary
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.run_store import RunStore
from fedsim.training import Hook

log = logging.getLogger("fedsim.parties")

POLL_SECONDS = 0.1
SHUTDOWN_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class LocalRun:
    """The result of a job in one process."""

    outcome: primary.TrainingOutcome
    ledger: list[LedgerEntry]


def run_local(
    job: Job,
    files: Sequence[PartyFile],
    hooks: Sequence[Hook] = (),
    transport: Transport | None = None,
    *,
    again: bool = False,
) -> LocalRun:
    """Run every party of a job in its own thread; policies and approvals apply as they do between organisations.

    The ``hooks`` follow the primary's training; the parties talk through queues unless a ``transport`` is given. A job
    that was trained before is not trained again, and its ledger is empty, unless ``again`` discards the stored run.
    """
    by_party = {file.party: file for file in files}
    missing = [str(party) for party in job.parties if party not in by_party]
    if missing:
        message = f"job '{job.name}' also needs the party files of {', '.join(missing)}"
        raise SettingError(message, code="missing-party-file")
    if not again and (earlier := _load_earlier(job, files)):
        return earlier
    _warn_of_label_among_features(job, files)
    transport = transport or InProcessTransport()
    # Set when a party ends: in Python 3.11 an interrupted Thread.join takes a running thread for one that has ended.
    changed = threading.Event()
    threads = [_PartyThread(job, by_party[party], transport, hooks, changed, again) for party in job.parties]
    for thread in threads:
        thread.start()
    try:
        while not all(thread.ended for thread in threads) and not any(thread.error for thread in threads):
            changed.wait(POLL_SECONDS)
            changed.clear()
    except KeyboardInterrupt:  # threads that still compute when Python exits would crash it
        for thread in threads:
            if thread.stop_signal:
                thread.stop_signal.stop()
        raise
    finally:
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for thread in threads:  # after a failure the others have a moment to hear of it
            thread.join(max(0.0, deadline - time.monotonic()))
    errors = [thread.error for thread in threads if thread.error]
    if errors:  # the cause, rather than a peer's report of it
        raise next((error for error in errors if not isinstance(error, PeerError)), errors[0])
    outcome = next(thread.outcome for thread in threads if thread.outcome)
    return LocalRun(outcome, merge_ledgers(thread.ledger for thread in threads))


def _warn_of_label_among_features(job: Job, files: Sequence[PartyFile]) -> None:
    """Warn if an approved column of a secondary has the name of the label; only here both names are known."""
    primary_file = next(file for file in files if file.role is Role.PRIMARY)
    for file in files:
        approved = find_approval(job, file) if file.role is Role.SECONDARY else None
        features = approved.columns.get("features") if approved else None
        if twin := label_among_features(primary_file, file, map(str, features or ())):
            message = "feature '%s' of %s has the name of the label, which it may give away; drop it, or list it in %s"
            log.warning(message, twin, file.party, "features.columns if it is meant")


def _load_earlier(job: Job, files: Sequence[PartyFile]) -> LocalRun | None:
    """Return the outcome of a job that was trained before, unless its inputs have changed since."""
    learners = [file for file in files if file.role is not Role.COORDINATOR]
    require_same_inputs(job, learners)
    if not all(is_trained(run_path(job, file)) for file in learners):
        return None
    folder = next(run_path(job, file) for file in learners if file.role is Role.PRIMARY)
    log.info("job '%s' is already trained, in %s; add --again to train it again", job.name, folder)
    return LocalRun(primary.load_outcome(RunStore(folder, job)), [])


class _PartyThread(threading.Thread):
    def __init__(
        self,
        job: Job,
        party_file: PartyFile,
        transport: Transport,
        hooks: Sequence[Hook],
        changed: threading.Event,
        again: bool,
    ) -> None:
        super().__init__(name=str(party_file.party), daemon=True)
        self.job, self.party_file, self.hooks, self.changed = job, party_file, hooks, changed
        self.context = partial(open_party_context, job, party_file, transport, software_versions(), again=again)
        self.ledger = Ledger()
        self.outcome: primary.TrainingOutcome | None = None
        self.error: BaseException | None = None
        self.stop_signal: StopSignal | None = None
        self.ended = False

    def run(self) -> None:
        try:
            with self.context() as context:
                self.ledger, self.stop_signal = context.connection.ledger, context.connection.stop_signal
                with publish_progress(context.folder, context.job, context.connection, context.progress):
                    if self.party_file.role is Role.COORDINATOR:
                        coordinator.run_coordinator(context)
                    elif self.party_file.role is Role.SECONDARY:
                        secondary.run_secondary(context)
                    else:
                        self.outcome = primary.run_primary(context, self.hooks)
        except BaseException as error:  # raised again by run_local
            self.error = error
        finally:
            self.ended = True
            self.changed.set()
