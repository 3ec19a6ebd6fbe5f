"""``FedSimRecipe``: a job as an NVFlare recipe, for ``SimEnv``, ``PocEnv`` and ``ProdEnv``."""

import json
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from fedsim.config import read_job, read_party_file
from fedsim.config.party_file import require_membership
from fedsim.errors import FileError, SettingError

try:
    from nvflare import FedJob
    from nvflare.recipe import PocEnv, SimEnv
    from nvflare.recipe.spec import Recipe
except ImportError as error:
    message = "FedSimRecipe requires the package nvflare; install fedsim-vfl[nvflare]"
    raise SettingError(message, code="missing-package", package="nvflare") from error

from fedsim_nvflare.components import RESULT_FILE, TASK, FedSimController, FedSimExecutor


class FedSimRecipe(Recipe):  # type: ignore[misc] # NVFlare has no types
    """A FedSim job whose parties NVFlare deploys, starts and monitors, one party per site.

    Only the job file travels. Party files, tables, keys and certificates stay at their sites, and each owner approves
    the job there with ``fedsim approve``.

    Parameters
    ----------
    job
        The job file.
    sites
        Maps the name of each NVFlare site to the path of its party file: a path on this machine in ``SimEnv`` and
        ``PocEnv``, otherwise a path at the site, relative to the site's workspace unless absolute.
    restarts
        How often the process of one site may die and be started again; it resumes from its last checkpoint.
    custom_code
        Whether the small components of this package travel with the job as custom code (BYOC), so that the server
        does not need FedSim. Otherwise, the server and sites must have it installed and list ``fedsim_nvflare`` in
        ``class_allow_list``.

    Examples
    --------
    >>> recipe = FedSimRecipe("job.toml", {"site-1": "notary.toml", "site-2": "rentals.toml", "site-3": "city.toml"})
    ... # doctest: +SKIP
    >>> run = recipe.execute(SimEnv(num_clients=3))  # doctest: +SKIP
    >>> read_result(run.get_result())["site-3"]["status"]  # doctest: +SKIP
    'finished'
    """

    def __init__(
        self,
        job: str | PathLike[str],
        sites: Mapping[str, str | PathLike[str]],
        *,
        restarts: int = 3,
        custom_code: bool = True,
    ) -> None:
        path = Path(job)
        self.fedsim_job, self.sites = read_job(path), {site: str(party_file) for site, party_file in sites.items()}
        parties = [str(party) for party in self.fedsim_job.parties]
        if len(sites) != len(parties):
            rule = f"the job has {len(parties)}, {', '.join(parties)}; name one site for each"
            raise SettingError(f"{len(sites)} sites for the parties of a job: {rule}", code="site-per-party")
        flare_job = FedJob(
            name=re.sub(r"[^A-Za-z0-9_-]", "-", self.fedsim_job.name),
            min_clients=len(sites),
            mandatory_clients=list(sites),
        )
        if not custom_code:
            flare_job.set_app_packages([__package__])
        flare_job.to_server(FedSimController(list(sites), restarts))
        self._executors = {site: FedSimExecutor(path.name, party_file) for site, party_file in self.sites.items()}
        for site, executor in self._executors.items():
            flare_job.to(executor, site, tasks=[TASK])
            flare_job.add_file_to(str(path), site, app_folder_type="config")
        super().__init__(flare_job)

    def process_env(self, env: Any) -> None:
        """Check the sites of an environment on this machine and make the paths of their party files absolute."""
        local = isinstance(env, SimEnv | PocEnv)
        if local:
            self._check_sites(env)
        for site, executor in self._executors.items():
            executor.party_file = str(Path(self.sites[site]).absolute()) if local else self.sites[site]

    def _check_sites(self, env: SimEnv | PocEnv) -> None:
        clients = env.clients or [f"site-{number + 1}" for number in range(env.num_clients)]
        missing = [site for site in self.sites if site not in clients]
        if missing and not getattr(env, "project_conf_path", ""):
            hint = f"name {type(env).__name__}(clients={list(self.sites)})"
            message = f"the environment has no site '{missing[0]}', only {', '.join(clients)}; {hint}"
            raise SettingError(message, code="unknown-site", site=missing[0])
        if getattr(env, "num_threads", None) is not None and env.num_threads < len(self.sites):
            rule = f"all {len(self.sites)} parties run at the same time; omit num_threads"
            raise SettingError(f"num_threads={env.num_threads}, but {rule}", code="too-few-threads")
        files = {site: read_party_file(Path(party_file)) for site, party_file in self.sites.items()}
        for own in files.values():
            require_membership(self.fedsim_job, own)
        absent = [party for party in self.fedsim_job.parties if party not in {own.party for own in files.values()}]
        if absent:
            message = f"no site has the file of {absent[0]}; name one party file for each site"
            raise SettingError(message, code="site-per-party")


def read_result(folder: str | PathLike[str]) -> dict[str, Any]:
    """Return the report of every party by its site, from the folder that ``run.get_result()`` returns.

    Every report has a ``status``, ``"finished"`` or ``"failed"``, and the ``code`` of the error; the primary's report
    includes the ``metrics`` if its policy sets ``report_metrics``.
    """
    path = next(Path(folder).rglob(RESULT_FILE), None)
    if path is None:
        message = f"{folder} has no {RESULT_FILE}: the job was aborted, or did not start; see the server's log"
        raise FileError(message, code="no-result")
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result
