"""The command ``fedsim``.

Nothing heavy is imported before a command runs, so that help answers at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from fedsim.cli.app import app
from fedsim.errors import FedSimError

DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code: 0 done, 1 a defect of ours, 2 something to mend, 130 stopped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Read here, because it is accepted before and after the name of the command.
        app(args=[word for word in words if word != DEBUG], prog_name="fedsim")
    except FedSimError as error:
        if DEBUG in words:
            traceback.print_exception(error)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
