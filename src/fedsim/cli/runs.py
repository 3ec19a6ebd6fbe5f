"""``fedsim runs`` and ``fedsim report``: what was trained here, side by side and one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Json, Quiet

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look for runs, a few folders deep.")]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run folder of a primary, or a folder with one such run in it.")
]

Map = Annotated[
    Path | None,
    typer.Option(
        "--map", metavar="PARTY", help="The primary's own file: draw its places into the page, in cells of several."
    ),
]
Named = Annotated[
    Path | None,
    typer.Option(
        "--show-identifiers",
        metavar="PARTY",
        help="The primary's own file: write row and identifiers of the examples into the page; keep it to yourself.",
    ),
]


def runs(folder: Folder = Path(), quiet: Quiet = False, as_json: Json = False) -> None:
    """List the runs under a folder, newest last, and say where their settings differ.

    fedsim runs city-run
    """
    from fedsim.cli.run_telling import tell_runs

    tell_runs(folder, quiet=quiet, as_json=as_json)


def report(run: RunPath, map_: Map = None, named: Named = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Write report.html and the model card of a run anew, with whatever its folder holds by now.

    That is what `fedsim compare --out RUN/compare` and `fedsim audit --out RUN/audit` left there. The page needs no
    network. It holds a few example records without row or identifier, unless --show-identifiers asks for them;
    with --map the primary's places, in coarse cells.
    """
    from fedsim.cli.run_telling import tell_written
    from fedsim.party.party_file import read_party_file
    from fedsim.report.run_page import write_report
    from fedsim.report.runs import the_run

    own = [None if path is None else read_party_file(path) for path in (map_, named)]
    tell_written(write_report(the_run(run), *own), quiet=quiet, as_json=as_json)
