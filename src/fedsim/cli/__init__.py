"""The command ``fedsim``; nothing heavy is imported before a command runs, so that help appears at once."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from fedsim.cli.exit_codes import ExitCode, exit_code_for
from fedsim.errors import FedSimError

__all__ = ["main"]

DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its :class:`ExitCode`.

    Parameters
    ----------
    arguments
        The words after ``fedsim``; by default those of this process.
    """
    from fedsim.cli.app import app  # here, because extensions import fedsim.cli.options

    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # --debug is accepted before and after the name of the command.
        app(args=[word for word in words if word != DEBUG], prog_name="fedsim")
    except KeyboardInterrupt:
        sys.exit(ExitCode.STOPPED)
    except FedSimError as error:
        _exit_with_error(error, str(error), exit_code_for(error), debug=DEBUG in words)
    except MemoryError as error:
        message = "not enough memory; use fewer records, shorter filters or a larger machine"
        _exit_with_error(error, message, ExitCode.INVALID_INPUT, debug=DEBUG in words)
    except Exception as error:  # the outermost handler; messages of other libraries may contain records
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = (
            f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}: this is a bug in FedSim; "
            "run the command again with --debug and report the traceback, without your records"
        )
        _exit_with_error(error, message, ExitCode.DEFECT, debug=DEBUG in words)


def _exit_with_error(error: Exception, message: str, code: ExitCode, *, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
