"""``python -m fedsim``: the command ``fedsim`` where its folder is not on the path."""

from fedsim.cli import main

if __name__ == "__main__":
    main()
