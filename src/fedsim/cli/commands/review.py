"""Commands that review a job before it runs: approve, check, audit, compare and privacy."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import (
    Insecure,
    JobFile,
    Json,
    Quiet,
    Verbose,
    Wait,
    check_out_name,
    check_seed,
    print_nothing,
    prompt_user,
)
from fedsim.errors import SettingError

# ``fedsim approve``: the owner reads what a job takes out of the party, and says yes or no


def approve(
    job: Annotated[Path, typer.Argument(help="The job file, shared by all parties.")],
    party: Annotated[Path, typer.Argument(help="The party file, your own.")],
    yes: Annotated[bool, typer.Option("--yes", help="Approve without being asked.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what leaves this party in a job, and to whom; then approve it.

    Nothing is sent. A party takes part only in jobs its owner has approved; a job or columns that change need it anew.
    """
    from fedsim.cli.approve import approve_job

    if quiet and not yes:
        raise SettingError("--quiet shows nothing to say yes to; add --yes, or leave --quiet away")
    aloud = partial(typer.echo, err=as_json)
    say = print_nothing if quiet or (as_json and yes) else aloud
    found = approve_job(job, party, ask=(lambda: True) if yes else partial(_prompt_for_approval, as_json), say=say)
    if as_json:
        typer.echo(json.dumps(asdict(found), ensure_ascii=False))
    if not found.approved:
        aloud("not approved; nothing was written but a line in the audit log")
        raise typer.Exit(2)


def _prompt_for_approval(aside: bool) -> bool:
    answer = prompt_user(lambda: typer.confirm("Approve?", default=False, err=aside))
    if answer is None:
        typer.echo("no answer; say --yes to approve without being asked", err=aside)
    return bool(answer)


# ``fedsim check``: what would fail and what it would cost, before anything is sent


CheckParties = Annotated[
    list[Path] | None, typer.Argument(metavar="PARTY", help="Party files; none: only the job is checked.")
]
BandwidthMbit = Annotated[float, typer.Option(metavar="MBIT", min=0.001, help="Speed of the line, in Mbit/s.")]
LatencyMs = Annotated[float, typer.Option(metavar="MS", min=0.0, help="How long a word and its answer take.")]
CallPeers = Annotated[
    bool, typer.Option("--peers/--no-peers", help="Call the peers that are dialled: a TLS handshake.")
]


def check(
    job: JobFile,
    parties: CheckParties = None,
    mbit: BandwidthMbit = 100.0,
    ping_ms: LatencyMs = 20.0,
    peers: CallPeers = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a job and the files of parties, tell how to mend what is wrong, and estimate bytes and minutes.

    Nothing is written, and nothing of yours is sent. Ends with 0 if all is well or only warned of, with 2 otherwise.

    fedsim check job.toml rentals.toml --mbit 20 --ping-ms 35
    """
    from fedsim.cli.check import run_check

    if not run_check(
        job, parties or [], (mbit, ping_ms), call_peers=peers, verbose=verbose, quiet=quiet, as_json=as_json
    ):
        raise typer.Exit(2)


# ``fedsim audit``: attack your own linkage before you share it


AuditParties = Annotated[
    list[Path],
    typer.Argument(
        metavar="PARTY",
        help="Files of parties whose tables are here: primary and secondary for true figures; one alone is split in "
        "two halves, of which one stands in for the other side.",
    ),
]
AuditOut = Annotated[Path, typer.Option(help="Name of the two files to write: OUT.json and OUT.html.")]
AuditLimit = Annotated[
    float, typer.Option(help="Gain over blind guessing above which a setting is looked for; 0 none, 1 certainty.")
]
FailAbove = Annotated[
    float | None, typer.Option(help="The same limit, and exit code 2 where it is exceeded: for your own CI.")
]
AuditMetres = Annotated[float, typer.Option(help="How near a guess must be for a place to count as found.")]
AuditSeed = Annotated[int, typer.Option(help="Where the chance of attacks and samples starts.")]
AuditMaxRecords = Annotated[int, typer.Option(help="Larger tables are sampled to so many records.")]
AuditEpochs = Annotated[int, typer.Option(help="Length of the training that is listened to.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer records, one epoch, no search for settings: under a minute.")
]
QUICK_RECORDS, QUICK_TARGETS = 1_000, 100


def audit(
    job: JobFile,
    parties: AuditParties,
    out: AuditOut = Path("audit"),
    limit: AuditLimit = 0.01,
    fail_above: FailAbove = None,
    metres: AuditMetres = 500.0,
    seed: AuditSeed = 0,
    most_records: AuditMaxRecords = 5_000,
    epochs: AuditEpochs = 3,
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

    from fedsim.audit.report import AuditSettings
    from fedsim.cli.audit import free_memory, run_audit

    settings = AuditSettings(
        limit=limit if fail_above is None else fail_above,
        metres=metres,
        seed=check_seed(seed),
        most_records=most_records,
        epochs=epochs,
        memory=free_memory(),
    )
    if quick:
        records = min(most_records, QUICK_RECORDS)
        settings = replace(settings, most_records=records, targets=QUICK_TARGETS, tries=0, epochs=1)
    exceeded = run_audit(job, parties, settings, check_out_name(out), quiet=quiet, as_json=as_json)
    if fail_above is not None and exceeded:
        raise typer.Exit(2)


# ``fedsim compare``: the honest ladder of a job, before anybody signs anything


CompareParties = Annotated[
    list[Path],
    typer.Argument(metavar="PARTY...", help="Files of the primary and of every secondary; or the primary's alone."),
]
CompareOut = Annotated[
    Path, typer.Option(help="Folder for ladder.json and every training's result; a second run goes on from there.")
]
CompareSeeds = Annotated[int, typer.Option(min=1, help="How often everything is split and trained anew.")]
CompareEpochs = Annotated[int | None, typer.Option(min=1, help="Epochs of every network, instead of the job's.")]
CompareUnit = Annotated[str, typer.Option(help="Unit of the label, for the sentences; left out, the label's name.")]


def compare(
    job: JobFile,
    parties: CompareParties,
    out: CompareOut = Path("fedsim-compare"),
    seeds: CompareSeeds = 5,
    epochs: CompareEpochs = None,
    unit: CompareUnit = "",
    wait: Wait = 60.0,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Tell what a partner is worth: the primary alone, with it, and with partners that cannot help, side by side.

    All tables are read in this process and nothing is sent. Links are found, and features, activations and gradients
    are protected, as the job says. Every rung is trained for every seed under a random split and under one that keeps
    equal identifiers on one side. What is trained is kept: stop at any time and call again.

    With the primary's file alone the secondaries are asked where they are, over the network, after training: they run
    with --stay, their policy allows so many studies (max_studies), and links, split and protections are the job's.

    fedsim compare job.toml city.toml rentals.toml --seeds 5

    fedsim compare job.toml city.toml --seeds 3
    """
    from fedsim.cli.compare import CompareOptions, run_compare

    ways = {"insecure": insecure, "quiet": quiet, "verbose": verbose, "as_json": as_json}
    run_compare(job, parties, out, CompareOptions(seeds, epochs, unit, wait), **ways)


# ``fedsim privacy``: from noise to what an attacker can hope for, and back


privacy_app = typer.Typer(
    no_args_is_help=True, help="From noise on similarities to what an attacker can hope for, and back."
)

NoiseSigma = Annotated[float, typer.Option(help="Standard deviation of the noise on the scaled similarities.")]
AttackBound = Annotated[float, typer.Option(help="Bound on the success of the paper's greedy attack.")]
DistanceSpread = Annotated[float, typer.Option(help="Standard deviation of the distances, in whole numbers (Hamming).")]
DistanceMean = Annotated[float, typer.Option(help="Mean of the negative distances (mu_0 of the paper).")]
PrimaryRecords = Annotated[int, typer.Option(help="Primary records.")]


@privacy_app.command()
def tau(sigma: NoiseSigma, spread: DistanceSpread, as_json: Json = False) -> None:
    """Bound on the success of the greedy attack for this noise (paper, Theorem 2)."""
    from fedsim.privacy.bounds import success_bound

    _print_value("tau", success_bound(sigma, spread), ".4e", as_json)


@privacy_app.command()
def sigma(tau: AttackBound, spread: DistanceSpread, as_json: Json = False) -> None:
    """Smallest noise for this bound (paper, Theorem 2); a bound below the floor is an error that names it."""
    from fedsim.privacy.bounds import sigma_for_bound

    _print_value("sigma", sigma_for_bound(tau, spread), ".6g", as_json)


@privacy_app.command()
def epsilon(
    sigma: NoiseSigma, spread: DistanceSpread, mean: DistanceMean, records: PrimaryRecords, as_json: Json = False
) -> None:
    """Least epsilon that could ever be proved for this noise with the paper's sensitivity (Theorem 1); no guarantee."""
    from fedsim.privacy.differential_privacy import least_epsilon, paper_sensitivity

    sensitivity = paper_sensitivity(records=records, mean=mean, spread=spread)
    _print_value("epsilon", least_epsilon(sigma=sigma, sensitivity=sensitivity), ".4g", as_json)


def _print_value(name: str, value: float, form: str, as_json: bool) -> None:
    typer.echo(json.dumps({name: value}) if as_json else format(value, form))


AttackBounds = Annotated[str, typer.Option(help="Bounds to list, between commas.")]
OptionalSpread = Annotated[
    float | None, typer.Option(help="Standard deviation of the distances; or give --job and --party.")
]
JobOption = Annotated[Path | None, typer.Option(help="Job whose linkage gives the spread; its tables are read.")]
PartyOption = Annotated[list[Path] | None, typer.Option(help="Party file of that job; may be repeated.")]
LinksPerPartner = Annotated[int, typer.Option(help="Links that name one partner, all of which its filter moves.")]
TradeoffParties = Annotated[list[Path], typer.Argument(metavar="PARTY", help="Files of the primary and a secondary.")]
TradeoffOut = Annotated[Path, typer.Option(help="Name of the two files to write: OUT.json and OUT.html.")]
TradeoffSweep = Annotated[str, typer.Option(help="What is swept: tau, blur, features, gradients or activations.")]
TradeoffSeeds = Annotated[int, typer.Option(min=1, max=20, help="How many seeds; each trains every setting once.")]
TradeoffEpochs = Annotated[int, typer.Option(min=1, help="Length of each training.")]
TradeoffMaxRecords = Annotated[int, typer.Option(min=20, help="Larger tables are sampled to so many records.")]


@privacy_app.command()
def table(
    spread: OptionalSpread = None,
    taus: AttackBounds = "0.5,0.1,0.05,0.01,0.001,0.0001",
    links: LinksPerPartner = 50,
    job: JobOption = None,
    party: PartyOption = None,
    as_json: Json = False,
) -> None:
    """Tau, the noise it takes, and the epsilon (delta 1e-5) that holds between filters one bit apart.

    fedsim privacy table --spread 21178.86 --taus 0.01,0.001
    """
    from fedsim.cli.audit import print_privacy_table

    print_privacy_table(spread, taus, links, (job, party or []), as_json=as_json)


@privacy_app.command()
def tradeoff(
    job: JobFile,
    parties: TradeoffParties,
    out: TradeoffOut = Path("tradeoff"),
    sweep: TradeoffSweep = "tau",
    seeds: TradeoffSeeds = 1,
    epochs: TradeoffEpochs = 5,
    most_records: TradeoffMaxRecords = 3_000,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Sweep a mechanism: what the best attack gains beside how well a short training does, as table, JSON and page.

    Nothing is sent; the tables of the files you name are read.

    fedsim privacy tradeoff job.toml city.toml rentals.toml --sweep gradients
    """
    from fedsim.audit.report import AuditSettings
    from fedsim.cli.audit import run_tradeoff

    first = check_seed(seed)
    each = [AuditSettings(seed=first + more, epochs=epochs, most_records=most_records) for more in range(seeds)]
    run_tradeoff(job, parties, (each, sweep), check_out_name(out), quiet=quiet, as_json=as_json)
