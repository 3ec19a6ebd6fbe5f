"""How a command ends, for scripts; the page of the documentation is made from these lines."""

from __future__ import annotations

import signal
from enum import IntEnum

from fedsim.errors import AwayError, FedSimError


class ExitCode(IntEnum):
    """What the shell gets."""

    DONE = 0
    DEFECT = 1
    MEND = 2
    AWAY = 3
    STOPPED = 130


STOPPING = (signal.SIGINT, signal.SIGTERM)
"""What asks a command to end so."""

MEANINGS = {
    ExitCode.DONE: "Done. Warnings may have been printed.",
    ExitCode.DEFECT: "A defect of FedSim: the message names the place, `--debug` shows how it came there; please "
    "report it. Also, without a message, when the reader of the output went away (`fedsim explain | head -1`).",
    ExitCode.MEND: "Something to mend: a word on the command line, a file, a setting, a record, a refusal. The message "
    "says what was seen, which rule it breaks and the way out. `check` and `audit --fail-above` end so where they "
    "find a fault.",
    ExitCode.AWAY: "Another party is not there now. Nothing is wrong here; start the same command again later.",
    ExitCode.STOPPED: "Stopped by Ctrl-C or SIGTERM. Started again, a party goes on where it was.",
}


def code_of(error: FedSimError) -> ExitCode:
    """How a command ends that met this error."""
    return ExitCode.AWAY if isinstance(error, AwayError) else ExitCode.MEND
