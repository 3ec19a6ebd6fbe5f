"""Exit codes of the command line; the reference page is generated from these definitions."""

from __future__ import annotations

import signal
from enum import IntEnum

from fedsim.errors import AwayError, FedSimError


class ExitCode(IntEnum):
    """What the shell gets."""

    DONE = 0
    DEFECT = 1
    INVALID_INPUT = 2
    PEER_UNAVAILABLE = 3
    STOPPED = 130


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What asks a command to end so."""

EXIT_CODE_MEANINGS = {
    ExitCode.DONE: "Done. Warnings may have been printed.",
    ExitCode.DEFECT: "A defect of FedSim: the message names the place, `--debug` shows how it came there; please "
    "report it. Also, without a message, when the reader of the output went away (`fedsim explain | head -1`).",
    ExitCode.INVALID_INPUT: "Something to mend: a word on the command line, a file, a setting, a record, a refusal. The message "
    "says what was seen, which rule it breaks and the way out. `check` and `audit --fail-above` end so where they "
    "find a fault.",
    ExitCode.PEER_UNAVAILABLE: "Another party is not there now. Nothing is wrong here; start the same command again later.",
    ExitCode.STOPPED: "Stopped by Ctrl-C or SIGTERM. Started again, a party goes on where it was.",
}


def exit_code_for(error: FedSimError) -> ExitCode:
    """How a command ends that met this error."""
    return ExitCode.PEER_UNAVAILABLE if isinstance(error, AwayError) else ExitCode.INVALID_INPUT
