"""``fedsim privacy``: from noise to what an attacker can hope for, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import JobFile, Json, Quiet, checked_out, checked_seed

app = typer.Typer(no_args_is_help=True, help="From noise on similarities to what an attacker can hope for, and back.")

Sigma = Annotated[float, typer.Option(help="Standard deviation of the noise on the scaled similarities.")]
Tau = Annotated[float, typer.Option(help="Bound on the success of the paper's greedy attack.")]
Spread = Annotated[float, typer.Option(help="Standard deviation of the distances, in whole numbers (Hamming).")]
Mean = Annotated[float, typer.Option(help="Mean of the negative distances (mu_0 of the paper).")]
Records = Annotated[int, typer.Option(help="Primary records.")]


@app.command()
def tau(sigma: Sigma, spread: Spread, as_json: Json = False) -> None:
    """Bound on the success of the greedy attack for this noise (paper, Theorem 2)."""
    from fedsim.privacy.bounds import success_bound

    _tell("tau", success_bound(sigma, spread), ".4e", as_json)


@app.command()
def sigma(tau: Tau, spread: Spread, as_json: Json = False) -> None:
    """Smallest noise for this bound (paper, Theorem 2); a bound below the floor is an error that names it."""
    from fedsim.privacy.bounds import noise_for

    _tell("sigma", noise_for(tau, spread), ".6g", as_json)


@app.command()
def epsilon(sigma: Sigma, spread: Spread, mean: Mean, records: Records, as_json: Json = False) -> None:
    """Least epsilon that could ever be proved for this noise with the paper's sensitivity (Theorem 1); no guarantee."""
    from fedsim.privacy.dp import least_epsilon, paper_sensitivity

    sensitivity = paper_sensitivity(records=records, mean=mean, spread=spread)
    _tell("epsilon", least_epsilon(sigma=sigma, sensitivity=sensitivity), ".4g", as_json)


def _tell(name: str, value: float, form: str, as_json: bool) -> None:
    typer.echo(json.dumps({name: value}) if as_json else format(value, form))


Taus = Annotated[str, typer.Option(help="Bounds to list, between commas.")]
OwnSpread = Annotated[
    float | None, typer.Option(help="Standard deviation of the distances; or give --job and --party.")
]
JobOption = Annotated[Path | None, typer.Option(help="Job whose linkage gives the spread; its tables are read.")]
PartyOption = Annotated[list[Path] | None, typer.Option(help="Party file of that job; may be repeated.")]
Links = Annotated[int, typer.Option(help="Links that name one partner, all of which its filter moves.")]
PartyPaths = Annotated[list[Path], typer.Argument(metavar="PARTY", help="Files of the primary and a secondary.")]
Out = Annotated[Path, typer.Option(help="Name of the two files to write: OUT.json and OUT.html.")]
Sweep = Annotated[str, typer.Option(help="What is swept: tau, blur, features, gradients or activations.")]
Seeds = Annotated[int, typer.Option(min=1, max=20, help="How many seeds; each trains every setting once.")]
Epochs = Annotated[int, typer.Option(min=1, help="Length of each training.")]
MostRecords = Annotated[int, typer.Option(min=20, help="Larger tables are sampled to so many records.")]


@app.command()
def table(
    spread: OwnSpread = None,
    taus: Taus = "0.5,0.1,0.05,0.01,0.001,0.0001",
    links: Links = 50,
    job: JobOption = None,
    party: PartyOption = None,
    as_json: Json = False,
) -> None:
    """Tau, the noise it takes, and the epsilon (delta 1e-5) that holds between filters one bit apart.

    fedsim privacy table --spread 21178.86 --taus 0.01,0.001
    """
    from fedsim.cli.trading import tell_table

    tell_table(spread, taus, links, (job, party or []), as_json=as_json)


@app.command()
def tradeoff(
    job: JobFile,
    parties: PartyPaths,
    out: Out = Path("tradeoff"),
    sweep: Sweep = "tau",
    seeds: Seeds = 1,
    epochs: Epochs = 5,
    most_records: MostRecords = 3_000,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Sweep a mechanism: what the best attack gains beside how well a short training does, as table, JSON and page.

    Nothing is sent; the tables of the files you name are read.

    fedsim privacy tradeoff job.toml city.toml rentals.toml --sweep gradients
    """
    from fedsim.audit.settings import Settings
    from fedsim.cli.trading import tell_tradeoff

    first = checked_seed(seed)
    each = [Settings(seed=first + more, epochs=epochs, most_records=most_records) for more in range(seeds)]
    tell_tradeoff(job, parties, (each, sweep), checked_out(out), quiet=quiet, as_json=as_json)
