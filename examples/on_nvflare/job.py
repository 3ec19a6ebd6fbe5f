"""Run the three parties of ``examples/three_processes`` on NVFlare: ``python examples/on_nvflare/job.py FOLDER``.

Writes tables, keys, certificates and approvals to a new or empty folder, starts an NVFlare server and three sites on
this machine, and submits the job. ``--export`` writes the job for NVFlare's commands instead of running it.
"""

import sys
from pathlib import Path

from nvflare.recipe import PocEnv

from fedsim_nvflare import FedSimRecipe, read_result

sys.path.insert(0, str(Path(__file__).parents[1] / "three_processes"))
from run import make_secrets, write_files, write_tables

SITES = ["site-1", "site-2", "site-3"]


def main(folder: Path) -> None:
    """Prepare the folder and run the job."""
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder)
    write_tables(folder)
    make_secrets(folder)
    files = [folder / "notary.toml", folder / "rentals.toml", folder / "city.toml"]
    recipe = FedSimRecipe(folder / "job.toml", dict(zip(SITES, files, strict=True)))
    # On a busy machine the server needs longer than the usual ten seconds until an administrator can log in.
    run = recipe.execute(PocEnv(clients=SITES, num_clients=len(SITES), extra={"login_timeout": 60}))
    result = read_result(run.get_result(clean_up=False))
    print(run.get_status())
    for site, report in result.items():
        print(f"{site}: {report['status']} {report['code']}")
    print(f"the report of the city: {next(folder.glob('city-run/*/report.html'), 'none')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
