"""Linkage on a real Ray cluster of three nodes, each with its own processes: the bytes of the local engine, always."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from fedsim.errors import DeviceError, InputError, SettingError
from fedsim.linkage import link, save_encoded
from fedsim.linkage.metrics import WeightedField, WeightedSum, get_metric
from fedsim.linkage.soft_linkage import BackendOptions, Engine, load_engine
from fedsim.types import EncodedTable
from fedsim_lab.faults.local_job import NOTARY, RENTALS, LocalJob, create_local_job
from fedsim_lab.faults.processes import cold
from fedsim_ops import search_tiles
from fedsim_ops.ray_engine import ask_without_token
from fedsim_ops.search_tiles import CandidateChunk, QueryTile

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs fedsim-vfl[ray]")

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "5e" * 32,
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_health_check_period_ms": "500",  # a killed node is noticed within seconds
}
BITS = 1024
OPTIONS = BackendOptions(backend="flat")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two more nodes of one processor each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - Ray reads the settings when it is imported

        node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
        running = Cluster(initialize_head=True, head_node_args=node)
        del node["include_dashboard"]
        running.plain = running.add_node(wait=False, **node)  # the cluster lists its nodes in no order
        running.add_node(wait=False, **node)
        running.wait_for_nodes()
        yield running
        running.shutdown()


@pytest.fixture
def engine(cluster: Any) -> Iterator[Engine]:
    with load_engine(f"ray:{cluster.address}") as running:
        yield running


def filters(n: int, seed: int) -> EncodedTable:
    one, other = np.random.default_rng(seed).integers(0, 256, (2, n, BITS // 8), np.uint8)
    return EncodedTable(one & other, BITS, "0" * 64)


@pytest.mark.parametrize("metric", ["great-circle", "qgram-dice"])
def test_tables_in_memory_get_the_links_of_this_machine(engine: Engine, metric: str) -> None:
    rng = np.random.default_rng(2)
    tables: list[Any] = [rng.uniform((50, 4), (51, 6), (n, 2)).round(1) for n in (900, 700)]
    if metric == "qgram-dice":
        tables = [["".join(rng.choice([*"abc "], 9)) for _ in range(n)] for n in (90, 70)]
    whole, found = link(*tables, metric=metric, k=6), link(*tables, metric=metric, k=6, engine=engine)
    for column in ("partner", "distance", "similarity", "next_distance"):
        assert getattr(found, column).tobytes() == getattr(whole, column).tobytes()
    assert "Ray, 3 nodes" in found.plan


def test_more_threads_than_a_node_has_are_as_many_as_it_has(engine: Engine) -> None:
    found = link([[0.0], [9.0]], [[1.0], [8.0]], metric="euclidean", k=1, threads=64, engine=engine)
    assert found.partner.tolist() == [[0], [1]]


def test_an_error_in_a_task_is_the_one_of_this_machine(engine: Engine) -> None:
    metric = WeightedSum((WeightedField("x", "euclidean", weight=1e300),))
    tables = {"x": np.array([1e19])}, {"x": np.array([0.0])}
    with pytest.raises(InputError) as here:
        link(*tables, metric=metric, k=1)
    with pytest.raises(InputError) as there:
        link(*tables, metric=metric, k=1, engine=engine)
    assert here.value.code == there.value.code == "distance-overflow"


def test_an_error_that_is_not_ours_is_a_failed_engine(engine: Engine) -> None:
    table = get_metric("dice").prepare(filters(40, 1), "table")
    chunk = CandidateChunk(get_metric("dice"), table, 0, 3, BackendOptions("flat"))
    broken: Any = QueryTile(1, None)
    with pytest.raises(DeviceError) as failed:
        list(engine.search_tiles(chunk, [QueryTile(0, table), broken]))
    assert failed.value.code == "engine-failed"


def test_a_job_whose_coordinator_searches_on_ray_has_the_same_links(cluster: Any, tmp_path: Path) -> None:
    def prepare(name: str) -> LocalJob:
        place = create_local_job(tmp_path / name, training={"epochs": 1})
        if name == "ray":
            place.change_party(NOTARY, engine=f"ray:{cluster.address}")
        place.share_secret()
        place.approve()
        return place

    places = [prepare("local"), prepare("ray")]
    running = [
        cold(place.log(name), "party", place.job_path, place.path(name)) for place in places for name in place.names
    ]
    assert [process.wait() for process in running] == [0] * len(running)
    found = [place.run(NOTARY) / "lists" / RENTALS for place in places]
    for name in ("delivery.safetensors", "linked.safetensors"):
        assert (found[0] / name).read_bytes() == (found[1] / name).read_bytes()
    assert places[0].hashes() == places[1].hashes()


def test_tiles_of_a_node_that_is_killed_run_again(
    cluster: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_tiles, "RECORDS_PER_TASK", 500)
    tables = filters(6_000, 1), filters(12_000, 2)
    killed = list[int]()

    def kill_one(done: int, total: int) -> None:
        if done and not killed:
            killed.append(done)
            cluster.remove_node(cluster.plain, allow_graceful=False)

    found = link(*tables, metric="dice", k=5, backend="flat", engine=engine, progress=kill_one)
    whole = link(*tables, metric="dice", k=5, backend="flat")
    assert killed
    assert killed[0] < len(tables[0])
    assert len(cluster.list_all_nodes()) == 2
    for column in ("partner", "distance", "similarity", "next_distance"):
        assert getattr(found, column).tobytes() == getattr(whole, column).tobytes()


def test_a_wrong_token_and_a_missing_one_are_told_apart_from_no_cluster(cluster: Any, tmp_path: Path) -> None:
    script = (
        "from fedsim.errors import DeviceError\nfrom fedsim.linkage.soft_linkage import load_engine\n"
        f"try:\n    load_engine('ray:{cluster.address}').check()\nexcept DeviceError as error:\n    print(error.code)"
    )
    home = tmp_path / ".ray"
    home.mkdir()
    (home / "auth_token").write_text(SETTINGS["RAY_AUTH_TOKEN"])
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    running = [
        subprocess.Popen([sys.executable, "-c", script], env=known | token, stdout=subprocess.PIPE, text=True)
        for token in ({"RAY_AUTH_TOKEN": "a7" * 32}, {"HOME": "/nowhere"}, {"HOME": str(tmp_path)})
    ]
    found = [process.communicate()[0].strip() for process in running]
    assert found == ["cluster-token-refused", "cluster-token-refused", ""]


def test_a_cluster_that_requires_no_token_is_recognised(cluster: Any) -> None:
    def answer(_: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

    open_to_all = grpc.server(ThreadPoolExecutor(1))
    open_to_all.add_generic_rpc_handlers([SimpleNamespace(service=answer)])  # type: ignore[list-item]
    port = open_to_all.add_insecure_port("127.0.0.1:0")
    open_to_all.start()
    assert ask_without_token(f"127.0.0.1:{port}") is grpc.StatusCode.OK
    open_to_all.stop(None).wait()
    assert ask_without_token(f"127.0.0.1:{port}") is grpc.StatusCode.UNAVAILABLE
    assert ask_without_token(cluster.address) is grpc.StatusCode.UNAUTHENTICATED


def test_addresses_without_a_cluster_are_refused(tmp_path: Path) -> None:
    for address, kind, code in (
        ("127.0.0.1:1", DeviceError, "no-cluster"),
        ("nowhere", SettingError, "bad-engine-address"),
    ):
        with pytest.raises(kind) as refused:
            load_engine(f"ray:{address}").__enter__()
        assert refused.value.code == code
    save_encoded(filters(3, 1), tmp_path / "few")
    words = ["--primary", tmp_path / "few", "--secondary", tmp_path / "few", "--metric", "dice", "--k", "1"]
    command = [sys.executable, "-m", "fedsim", "link", *words, "--out", tmp_path / "links"]
    command += ["--engine", "ray:127.0.0.1:1"]
    done = subprocess.run([*map(str, command)], capture_output=True, check=False)
    assert done.returncode == 2
    assert not (tmp_path / "links").exists()
