"""``python -m fedsim``: the command ``fedsim`` where its folder is not on the path."""

from __future__ import annotations

from fedsim.cli import main

if __name__ == "__main__":
    main()
