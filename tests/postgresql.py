"""Where this machine's PostgreSQL is; the tests start a server of their own in a temporary folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MISSING = "no PostgreSQL server (initdb) is installed"
AS_ROOT = "PostgreSQL refuses to run as root and there is no runuser"


def programs() -> Path | None:
    """The folder of the server's programs."""
    found = shutil.which("initdb")
    here = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return here[-1] if here else None


def unprivileged() -> list[str]:
    """What stands before a command that must not run as root."""
    return ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []


def obstacle() -> str | None:
    """Why no server can be started here, if so."""
    if programs() is None:
        return MISSING
    return AS_ROOT if unprivileged() and not shutil.which("runuser") else None
