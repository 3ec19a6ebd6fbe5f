"""A job on NVFlare: its simulator, and a deployment of a server and three sites with real processes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from nvflare.recipe import PocEnv, ProdEnv, SimEnv

from error_fixtures import raises
from fedsim.errors import FileError, SettingError
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job
from fedsim_nvflare import FedSimRecipe, read_result

pytestmark = pytest.mark.filterwarnings("default")  # NVFlare's own warnings are not ours to fix
NAMES = [NOTARY, RENTALS, CITY]
LONGEST, PATIENCE = 600.0, 300.0  # seconds after which a test rather fails than waits; they measure nothing


def recipe_of(place, **options):
    return FedSimRecipe(place.job_path, {name: place.path(name) for name in NAMES}, **options)


@pytest.fixture(scope="module")
def hashes(tmp_path_factory):
    """What `fedsim train` gives for the same job."""
    place = create_local_job(tmp_path_factory.mktemp("local") / "job")
    run_local(place.job, [place.own(name) for name in NAMES])
    return place.hashes()


def processes(place):
    """The processes of the parties of a job, by the path of their party file."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended
            continue
        if "fedsim_nvflare.site" in words and str(place.folder) in words[-2]:
            found[Path(words[-2]).stem] = int(entry.parent.name)
    return found


def wait_until(happened):
    deadline = time.monotonic() + LONGEST
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def allow_components(workspace):
    """What the administrators of sites do that run no custom code."""
    (workspace / "local").mkdir(parents=True)
    allowed = {"format_version": 2, "class_allow_list": ["fedsim_nvflare.components"]}
    (workspace / "local" / "resources.json").write_text(json.dumps(allowed))


def checkpoints(place, name):
    return list(place.run(name).glob("checkpoints/**/step-*"))


# --- what is refused before anything starts ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return create_local_job(tmp_path_factory.mktemp("jobs") / "job")


def test_every_party_of_the_job_has_one_site(place):
    with raises(SettingError, "site-per-party"):
        FedSimRecipe(place.job_path, {"site-1": place.path(CITY)})
    doubled = FedSimRecipe(
        place.job_path, {"site-1": place.path(CITY), "site-2": place.path(CITY), "site-3": place.path(NOTARY)}
    )
    with raises(SettingError, "site-per-party"):
        doubled.execute(SimEnv(num_clients=3))


def test_the_sites_are_those_of_the_environment_and_run_at_the_same_time(place):
    with raises(SettingError, "unknown-site", site=NOTARY):
        recipe_of(place).execute(SimEnv(num_clients=3))
    with raises(SettingError, "too-few-threads"):
        recipe_of(place).execute(SimEnv(clients=NAMES, num_threads=2))


def test_a_folder_without_a_result_is_an_error(tmp_path):
    with raises(FileError, "no-result"):
        read_result(tmp_path)


def test_only_the_job_file_and_paths_travel(place, tmp_path):
    recipe_of(place).export(str(tmp_path / "with"), env=ProdEnv(str(tmp_path)))
    recipe_of(place, custom_code=False).export(str(tmp_path / "without"))
    sent = {path.relative_to(tmp_path / "with" / "flats").as_posix() for path in (tmp_path / "with").rglob("*.*")}
    assert {name for name in sent if name.endswith(".toml")} == {f"app_{name}/config/job.toml" for name in NAMES}
    assert {name for name in sent if name.endswith(".py")} == {
        f"app_{app}/custom/fedsim_nvflare/components.py" for app in (*NAMES, "server")
    }
    assert not list((tmp_path / "without").rglob("custom"))


# --- the simulator -----------------------------------------------------------------------------------------------


def test_without_custom_code_a_killed_process_starts_again_and_the_weights_are_those_of_fedsim_train(tmp_path, hashes):
    place = create_local_job(tmp_path / "job")
    place.change_party(CITY, policy={"report_metrics": True})
    place.approve(CITY)
    killed = []

    def kill_rentals():
        wait_until(lambda: checkpoints(place, RENTALS))
        killed.append(processes(place)[RENTALS])
        os.kill(killed[0], signal.SIGKILL)

    allow_components(tmp_path / "simulation" / "flats")
    threading.Thread(target=kill_rentals, daemon=True).start()
    env = SimEnv(clients=NAMES, workspace_root=str(tmp_path / "simulation"))
    run = recipe_of(place, custom_code=False).execute(env)
    result = read_result(run.get_result())
    assert killed
    assert {name: report["status"] for name, report in result.items()} == dict.fromkeys(NAMES, "finished")
    assert result[CITY]["metrics"]["test"]["rmse"] > 0
    assert "metrics" not in result[RENTALS]
    log = (Path(run.get_result()) / "server" / "log.txt").read_text()
    assert f"{CITY}: epoch 3: validation_rmse" in log
    assert place.hashes() == hashes


def test_a_job_without_a_coordinator_has_a_site_for_either_organisation(tmp_path):
    here, there = (create_local_job(tmp_path / name, direct=True) for name in ("here", "there"))
    run_local(here.job, [here.own(name) for name in here.names])
    recipe = FedSimRecipe(there.job_path, {name: there.path(name) for name in there.names})
    run = recipe.execute(SimEnv(clients=there.names, workspace_root=str(tmp_path / "simulation")))
    result = read_result(run.get_result())
    assert {name: report["status"] for name, report in result.items()} == dict.fromkeys(there.names, "finished")
    assert there.hashes() == here.hashes()


# --- a deployment: a server and three sites ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """A running deployment, its first job, and its administrator."""
    folder = tmp_path_factory.mktemp("deployment")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVFLARE_POC_WORKSPACE", str(folder / "poc"))
        patch.setenv("HOME", str(folder))  # NVFlare keeps settings there
        place = create_local_job(folder / "first")
        env = PocEnv(clients=NAMES, num_clients=len(NAMES), extra={"login_timeout": PATIENCE})
        try:
            run = recipe_of(place).execute(env)
            kit = next((folder / "poc").rglob("admin@nvidia.com"))
            yield place, run, ProdEnv(str(kit), login_timeout=PATIENCE)
        finally:
            env.stop()


def leaked(env, words):
    """The files of NVFlare, at the server, the sites and the administrator, with words of a party's output."""
    everything = Path(env.startup_kit_location).parent
    return [path for path in everything.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]


def test_a_deployment_learns_what_fedsim_train_learns(deployment, hashes):
    place, first, env = deployment
    result = read_result(env.get_job_result(first.get_job_id(), timeout=LONGEST))
    assert first.get_status() == "FINISHED:COMPLETED"
    assert {report["status"] for report in result.values()} == {"finished"}
    assert "metrics" not in result[CITY]  # its policy does not set report_metrics
    assert "validation rmse" in (place.own(CITY).folder / "nvflare.log").read_text()
    assert not leaked(env, "rmse")
    assert place.hashes() == hashes


def test_a_job_that_an_owner_has_not_approved_fails_with_the_code_of_the_error(deployment, tmp_path):
    _, _, env = deployment
    place = create_local_job(tmp_path / "job")
    for path in place.own(RENTALS).folder.rglob("approvals/*"):
        path.unlink()
    run = recipe_of(place).execute(env)
    result = read_result(run.get_result(timeout=LONGEST))
    assert run.get_status() == "FINISHED:EXECUTION_EXCEPTION"
    assert {name: result[name]["code"] for name in NAMES} == {
        NOTARY: "peer-stopped",
        RENTALS: "not-approved",
        CITY: "peer-stopped",
    }
    assert "fedsim approve" in (place.own(RENTALS).folder / "nvflare.log").read_text()
    assert not leaked(env, "fedsim approve")


def test_an_abort_stops_every_party_and_keeps_its_state(deployment, tmp_path):
    _, _, env = deployment
    place = create_local_job(tmp_path / "job", training={"epochs": 5000})
    run = recipe_of(place).execute(env)
    wait_until(lambda: checkpoints(place, CITY))
    assert set(processes(place)) == set(NAMES)
    run.abort()
    wait_until(lambda: not processes(place))
    for name in NAMES:
        lines = (place.own(name).folder / "audit.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["what"] == "stopped"
    assert checkpoints(place, CITY)
