"""``python -m fedsim.cli``: the command, where its name is not on the path."""

from __future__ import annotations

from fedsim.cli import main

main()
