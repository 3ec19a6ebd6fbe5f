"""``fedsim audit``: attack your own linkage before you share it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import JobFile, Json, Quiet, checked_out, checked_seed

PartyPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PARTY",
        help="Files of parties whose tables are here: primary and secondary for true figures; one alone is split in "
        "two halves, of which one stands in for the other side.",
    ),
]
Out = Annotated[Path, typer.Option(help="Name of the two files to write: OUT.json and OUT.html.")]
Limit = Annotated[
    float, typer.Option(help="Gain over blind guessing above which a setting is looked for; 0 none, 1 certainty.")
]
FailAbove = Annotated[
    float | None, typer.Option(help="The same limit, and exit code 2 where it is exceeded: for your own CI.")
]
Metres = Annotated[float, typer.Option(help="How near a guess must be for a place to count as found.")]
Seed = Annotated[int, typer.Option(help="Where the chance of attacks and samples starts.")]
MostRecords = Annotated[int, typer.Option(help="Larger tables are sampled to so many records.")]
Epochs = Annotated[int, typer.Option(help="Length of the training that is listened to.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer records, one epoch, no search for settings: under a minute.")
]
QUICK_RECORDS, QUICK_TARGETS = 1_000, 100


def audit(
    job: JobFile,
    parties: PartyPaths,
    out: Out = Path("audit"),
    limit: Limit = 0.01,
    fail_above: FailAbove = None,
    metres: Metres = 500.0,
    seed: Seed = 0,
    most_records: MostRecords = 5_000,
    epochs: Epochs = 3,
    quick: Quick = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every attack that applies to this job on your own tables, and tell who could learn what.

    Nothing is sent and no approval is asked, but the audit does look at the tables of the files you name. Ends with 0;
    with 2 where --fail-above is given and an attack gains more than that, or a guarantee of the job is broken.

    fedsim audit job.toml city.toml rentals.toml --fail-above 0.5
    """
    from dataclasses import replace

    from fedsim.audit.settings import Settings
    from fedsim.cli.auditing import audit_and_tell, free_memory

    settings = Settings(
        limit=limit if fail_above is None else fail_above,
        metres=metres,
        seed=checked_seed(seed),
        most_records=most_records,
        epochs=epochs,
        memory=free_memory(),
    )
    if quick:
        records = min(most_records, QUICK_RECORDS)
        settings = replace(settings, most_records=records, targets=QUICK_TARGETS, tries=0, epochs=1)
    exceeded = audit_and_tell(job, parties, settings, checked_out(out), quiet=quiet, as_json=as_json)
    if fail_above is not None and exceeded:
        raise typer.Exit(2)
