"""``fedsim privacy``: from noise to what an attacker can hope for, and back."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="From noise on similarities to what an attacker can hope for, and back.")

Sigma = Annotated[float, typer.Option(help="Standard deviation of the noise on the scaled similarities.")]
Tau = Annotated[float, typer.Option(help="Bound on the success of the paper's greedy attack.")]
Spread = Annotated[float, typer.Option(help="Standard deviation of the distances, in whole numbers (Hamming).")]
Mean = Annotated[float, typer.Option(help="Mean of the negative distances (mu_0 of the paper).")]
Records = Annotated[int, typer.Option(help="Primary records.")]


@app.command()
def tau(sigma: Sigma, spread: Spread) -> None:
    """Bound on the success of the greedy attack for this noise (paper, Theorem 2)."""
    from fedsim.privacy.bounds import success_bound

    typer.echo(f"{success_bound(sigma, spread):.4e}")


@app.command()
def sigma(tau: Tau, spread: Spread) -> None:
    """Smallest noise for this bound (paper, Theorem 2); a bound below the floor is an error that names it."""
    from fedsim.privacy.bounds import noise_for

    typer.echo(f"{noise_for(tau, spread):.6g}")


@app.command()
def epsilon(sigma: Sigma, spread: Spread, mean: Mean, records: Records) -> None:
    """Least epsilon that could ever be proved for this noise with the paper's sensitivity (Theorem 1); no guarantee."""
    from fedsim.privacy.dp import least_epsilon, paper_sensitivity

    sensitivity = paper_sensitivity(records=records, mean=mean, spread=spread)
    typer.echo(f"{least_epsilon(sigma=sigma, sensitivity=sensitivity):.4g}")
