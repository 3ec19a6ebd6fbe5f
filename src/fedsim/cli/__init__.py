"""The command ``fedsim``; nothing heavy is imported before a command runs, so that help appears at once."""

import logging
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from fedsim.errors import AwayError, FedSimError, KeyServerError, StaleResultError, replace_unprintable

__all__ = ["EXIT_CODE_MEANINGS", "STOP_SIGNALS", "ExitCode", "describe_failure", "exit_code_for", "main"]

DEBUG = "--debug"
RESUMABLE = ("train", "party", "compare", "tune")  # commands that continue where they were stopped
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ExitCode(IntEnum):
    """Status of a command for the shell."""

    DONE = 0
    DEFECT = 1
    INVALID_INPUT = 2
    BLOCKED = 3
    STOPPED = 130


# The reference page of exit codes is generated from these meanings.
EXIT_CODE_MEANINGS = {
    ExitCode.DONE: "Done. Warnings may have been printed.",
    ExitCode.DEFECT: "A bug in FedSim. The message says where; `--debug` shows the traceback. Please report it. Also "
    "used, without a message, if the output pipe is closed early (`fedsim explain | head -1`).",
    ExitCode.INVALID_INPUT: "Something to fix: an option, a file, a setting, a record, or a job that was refused. The "
    "message states the value seen, the rule and the way out. `check` and `audit --fail-above` exit with this code "
    "when they find a problem.",
    ExitCode.BLOCKED: "The command is right, but cannot go on now. Another party or a key server cannot be reached: "
    "run the same command again later. Or a table, key, party file or the release changed since the stored result: the "
    "message says which; restore it, or add `--again`.",
    ExitCode.STOPPED: "Stopped by Ctrl-C or SIGTERM. A party that is restarted continues where it left off.",
}


def exit_code_for(error: FedSimError) -> ExitCode:
    """Return the exit code of a command that failed with this error."""
    blocked = isinstance(error, AwayError | KeyServerError | StaleResultError)
    return ExitCode.BLOCKED if blocked else ExitCode.INVALID_INPUT


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
    except (KeyboardInterrupt, SystemExit) as ended:  # Typer exits by itself, after Ctrl-C as well
        code = ExitCode.STOPPED if isinstance(ended, KeyboardInterrupt) else ended.code
        if code == ExitCode.STOPPED:
            _print_continuation(words)
        sys.exit(code)
    except Exception as error:  # the outermost handler
        if DEBUG in words:
            print(replace_unprintable("".join(traceback.format_exception(error)), lines=True), file=sys.stderr, end="")
        message, code = describe_failure(error)
        logger = logging.getLogger("fedsim")
        if any(getattr(handler.formatter, "writes_json", False) for handler in logger.handlers):
            logger.critical("%s", message, extra={"fields": {"exit_code": int(code)}})
        else:
            print(f"error: {message}", file=sys.stderr)
        sys.exit(code)


def _print_continuation(words: Sequence[str]) -> None:
    named = next((word for word in words if not word.startswith("-")), "")
    if named in RESUMABLE and not {"--quiet", "-q"} & set(words):
        print(
            f"stopped; to continue: fedsim {shlex.join(word for word in words if word != '--again')}", file=sys.stderr
        )


def describe_failure(error: Exception) -> tuple[str, ExitCode]:
    """Return the message and the exit code of a command that failed; messages of other libraries may contain records.

    >>> describe_failure(FedSimError("k=50, but there are 12 records"))
    ('k=50, but there are 12 records', <ExitCode.INVALID_INPUT: 2>)
    """
    if isinstance(error, FedSimError):
        return str(error), exit_code_for(error)
    if isinstance(error, MemoryError):
        return "not enough memory; use fewer records, shorter filters or a larger machine", ExitCode.INVALID_INPUT
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"
    fix = "run the command again with --debug and report the traceback, without your records"
    return f"{place}: this is a bug in FedSim; {fix}", ExitCode.DEFECT
