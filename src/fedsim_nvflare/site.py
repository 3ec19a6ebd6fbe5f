"""The process that NVFlare starts at a site: one party (``python -m fedsim_nvflare.site JOB PARTY_FILE``).

The party's output goes to ``nvflare.log`` in its folder, because anyone who submits a job can stream NVFlare's log of a
site. The server learns the code of a failure, not its message.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.cli import ExitCode, describe_failure
from fedsim.cli.options import OutputMode
from fedsim.cli.party import run_party
from fedsim.config import PartyFile, read_party_file
from fedsim.protocol.messages import Role
from fedsim.runs.run_folder import make_private_folder
from fedsim_nvflare.components import EPOCHS_TAG, FAILED, FINISHED, REPORT

import nvflare.client as flare  # isort: skip # after FedSim, which restricts gRPC to TLS 1.3

if TYPE_CHECKING:
    from fedsim.training import Hook

LOG_FILE = "nvflare.log"


def main(arguments: Sequence[str]) -> int:
    """Run the party until it is done and report to NVFlare; return the exit code."""
    job, party_file = map(Path, arguments)
    flare.init()
    try:
        if flare.receive() is None:  # NVFlare ended the job
            return ExitCode.STOPPED
        started = time.perf_counter()
        report, code = run_site(job, party_file)
        seconds = {"seconds": time.perf_counter() - started}
        flare.send(flare.FLModel(metrics=seconds, meta={REPORT: report | seconds}))
    except KeyboardInterrupt:  # NVFlare aborted the job or its client ended; the party has saved its state
        return ExitCode.STOPPED
    finally:
        flare.shutdown()
    return code


def run_site(job: Path, party_file: Path) -> tuple[dict[str, Any], ExitCode]:
    """Run one party; return its report for NVFlare's server and the exit code of the process."""
    details = f"run `fedsim check {job} {party_file}`"
    try:
        own = read_party_file(party_file)
        make_private_folder(own.folder)
        path = own.folder / LOG_FILE
        details = f"see {path}"
        with path.open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
            try:
                outcome = run_party(job, party_file, OutputMode(), insecure=False, hooks=_hooks(own))
            except Exception as error:
                print(f"error: {describe_failure(error)[0]}", file=log)
                raise
    except Exception as error:  # the outermost handler, as of a command
        _, exit_code = describe_failure(error)
        code = getattr(error, "code", "") or type(error).__name__
        print(f"failed ({code}); {details}", file=sys.stderr)
        return {"status": FAILED, "code": code, "exit_code": int(exit_code)}, exit_code
    report: dict[str, Any] = {"status": FINISHED, "code": "", "party": str(own.party)}
    if outcome and own.policy.report_metrics:
        report |= {"metrics": outcome.metrics, "best_epoch": outcome.best_epoch, "epochs": outcome.epochs}
    return report, ExitCode.DONE


def _hooks(own: PartyFile) -> list[Hook]:
    """Return the primary's hook, which reports every epoch, with metrics if its policy says so, to NVFlare's server."""
    if own.role is not Role.PRIMARY:
        return []
    from nvflare.client.tracking import SummaryWriter  # noqa: PLC0415

    from fedsim.training import Epoch, Hook  # noqa: PLC0415 - the other parties do not load the training

    writer = SummaryWriter()

    class EpochReporter(Hook):
        def epoch_ended(self, epoch: Epoch) -> None:
            figures: dict[str, float] = {EPOCHS_TAG: epoch.number}
            if own.policy.report_metrics:
                figures |= {f"validation_{name}": value for name, value in epoch.validation.items()}
            for name, value in figures.items():
                writer.add_scalar(name, float(value), global_step=epoch.number)

    return [EpochReporter()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
