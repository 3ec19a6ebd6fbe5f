"""Exit codes of the command line; the reference page is generated from these definitions."""

import signal
from enum import IntEnum

from fedsim.errors import AwayError, FedSimError


class ExitCode(IntEnum):
    """Status of a command for the shell."""

    DONE = 0
    DEFECT = 1
    INVALID_INPUT = 2
    PEER_UNAVAILABLE = 3
    STOPPED = 130


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

EXIT_CODE_MEANINGS = {
    ExitCode.DONE: "Done. Warnings may have been printed.",
    ExitCode.DEFECT: "A bug in FedSim. The message names the place, `--debug` shows the traceback; please report it. "
    "Also, without a message, when the reader of the output closes the pipe (`fedsim explain | head -1`).",
    ExitCode.INVALID_INPUT: "Something to fix: an option, a file, a setting, a record, or a job that was refused. The "
    "message states the value seen, the rule and the way out. `check` and `audit --fail-above` exit with this code "
    "when they find a problem.",
    ExitCode.PEER_UNAVAILABLE: "Another party is not reachable now. Nothing is wrong here; run the same command later.",
    ExitCode.STOPPED: "Stopped by Ctrl-C or SIGTERM. A party that is started again continues where it was.",
}


def exit_code_for(error: FedSimError) -> ExitCode:
    """Return the exit code of a command that failed with this error."""
    return ExitCode.PEER_UNAVAILABLE if isinstance(error, AwayError) else ExitCode.INVALID_INPUT
