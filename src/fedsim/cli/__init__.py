"""The command ``fedsim``.

Nothing heavy is imported before a command runs, so that help answers at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from fedsim.cli.exit_codes import ExitCode, exit_code_for
from fedsim.errors import FedSimError

DEBUG = "--debug"
OUT_OF_MEMORY = "there is not enough memory for this; take fewer records, shorter filters or a larger machine"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its :class:`ExitCode`."""
    from fedsim.cli.app import app  # here, because extensions import fedsim.cli.options

    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Read here, because it is accepted before and after the name of the command.
        app(args=[word for word in words if word != DEBUG], prog_name="fedsim")
    except FedSimError as error:
        _exit_with_error(error, str(error), exit_code_for(error), debug=DEBUG in words)
    except KeyboardInterrupt:
        sys.exit(ExitCode.STOPPED)
    except MemoryError as error:
        _exit_with_error(error, OUT_OF_MEMORY, ExitCode.INVALID_INPUT, debug=DEBUG in words)
    except Exception as error:  # the outermost door: what another library says may hold records
        _exit_with_error(error, _defect_message(error), ExitCode.DEFECT, debug=DEBUG in words)


def _exit_with_error(error: Exception, told: str, code: ExitCode, *, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print(f"error: {told}", file=sys.stderr)
    sys.exit(code)


def _defect_message(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}"
    return f"{where}: a defect of FedSim; run it again with --debug, and report what that shows without your records"
