"""``fedsim bench``: how fast is it here, beside named peers?"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import FileError

Name = Annotated[str, typer.Argument(help="Which benchmark: the name of a file in the project's benchmarks folder.")]
Cases = Annotated[list[str] | None, typer.Argument(help="Only these of its cases; all without.")]


def bench(name: Name = "linkage", cases: Cases = None) -> None:
    """Run a benchmark of the project's benchmarks folder and print its table."""
    script = Path("benchmarks") / f"{name}.py"
    if not script.is_file():
        raise FileError(f"there is no {script} here; run this in the project's folder, where the benchmarks are")
    sys.path.insert(0, str(script.parent.resolve()))
    run = runpy.run_path(str(script.resolve())).get("main")
    if run is None:
        raise FileError(f"{script} is a part of a benchmark; run the whole, such as `fedsim bench linkage`")
    run(cases)
