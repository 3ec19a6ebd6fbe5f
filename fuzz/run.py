"""Fuzz the targets of ``targets.py`` by coverage: ``python fuzz/run.py --seconds 60 [TARGET ...]``.

Needs Atheris (``pip install '.[fuzz]'``). Inputs that reach new code are kept in ``build/fuzz``; an input that breaks a
target is written there, too, and belongs into ``corpus`` with its fix, where the tests run it for ever.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOUND = HERE.parent / "build" / "fuzz"


def main() -> int:
    """Run each target in a process of its own; return 1 if one of them broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    given = parser.parse_args()
    names = given.targets or sorted(path.name for path in (HERE / "corpus").iterdir())
    broken = []
    for name in names:
        (FOUND / name).mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={max(1, given.seconds // len(names))}", "-timeout=10", "-rss_limit_mb=4096"]
        options = [
            *limits,
            "-max_len=4096",
            "-print_final_stats=1",
            "-verbosity=0",
            f"-artifact_prefix={FOUND}/{name}-",
        ]
        command = [sys.executable, __file__, "--fuzz", name, *options, str(FOUND / name), str(HERE / "corpus" / name)]
        print(f"== {name}", flush=True)
        if subprocess.run(command, check=False).returncode:  # noqa: S603
            broken.append(name)
    print(f"broken: {', '.join(broken) or 'none'}")
    return bool(broken)


def fuzz(name: str, options: list[str]) -> None:
    """Fuzz one target; does not return."""
    import atheris  # noqa: PLC0415 - an extra

    with atheris.instrument_imports(include=["fedsim"]):
        from targets import TARGETS  # noqa: PLC0415

        TARGETS[name](b"")  # imports the rest, which takes seconds

    logging.disable(logging.CRITICAL)
    atheris.Setup([name, *options], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fuzz"]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
