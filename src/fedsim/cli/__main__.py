"""Run the command line with ``python -m fedsim.cli``."""

from __future__ import annotations

from fedsim.cli import main

main()
