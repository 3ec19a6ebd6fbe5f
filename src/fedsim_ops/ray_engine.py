"""The engine that searches on a Ray cluster: either a running one, or one that is started here and stopped again.

Candidates are in Ray's object store, where all workers of a node read the same copy; every tile of queries is a task. A
worker keeps the index of a chunk until it receives another chunk. The tasks of a lost node run again elsewhere.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc

from fedsim.errors import DeviceError, FedSimError, SettingError
from fedsim.linkage.soft_linkage import BackendOptions, SearchMemory
from fedsim.types import Floats, Integers
from fedsim.version import VERSION
from fedsim_ops.search_tiles import (
    CandidateChunk,
    QueryTile,
    TileBest,
    record_bytes,
    search_by_tiles,
    search_tile,
)

if TYPE_CHECKING:
    from fedsim.linkage.metrics import Metric
    from fedsim.linkage.search.runner import Records

log = logging.getLogger(__name__)

TASKS_PER_WORKER = 2  # one runs, one waits; more would only hold memory
MAX_RETRIES = 20  # of a task whose node or worker was lost
OBJECT_STORE_BYTES = 2**30  # of a cluster that is started here; what does not fit spills to disk
INDEX_FACTOR = 6  # memory of an index, as a multiple of the size of its records
CONNECT_SECONDS = 10.0
NODE_CHECK_SECONDS = 30.0  # time without a result before the nodes are checked
TOKEN_CHECK_SECONDS = 5.0
NO_ENGINE = "engine ray requires the package ray; install fedsim-vfl[ray]"
# Ray reads these when it is imported. Usage reports are off, and a cluster started here listens on 127.0.0.1 only.
NO_USAGE_STATS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
STARTUP_TIMEOUTS = {"RAY_raylet_start_wait_time_s": "120", "RAY_agent_register_timeout_ms": "120000"}


class RayEngine:
    """Searches on Ray.

    Parameters
    ----------
    address
        ``HOST:PORT`` of a running cluster that includes this machine as a node, or ``auto`` to find it; by default, a
        cluster is started on this machine alone.
    """

    def __init__(self, address: str = "") -> None:
        os.environ.update({name: value for name, value in NO_USAGE_STATS.items() if name not in os.environ})
        if not address and "ray" not in sys.modules:
            settings = {**LOOPBACK, **STARTUP_TIMEOUTS, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
        if ":" in address and ask_without_token(address) is grpc.StatusCode.UNAUTHENTICATED:
            # Ray sends its token to an explicit address only on request.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise SettingError(NO_ENGINE, code="missing-package", package="ray") from error
        self._address, self._users, self._lock, self._owned = address, 0, threading.Lock(), False

    def __enter__(self) -> Self:
        with self._lock:
            if not self._users and not self._ray.is_initialized():
                self._connect()
            self._users += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._owned:
                self._owned = False
                self._ray.shutdown()

    def check(self) -> None:
        """Connect briefly to a running cluster; a cluster that is started here needs no test."""
        if self._address:
            with self:
                pass

    def _connect(self) -> None:
        options: dict[str, Any] = {"address": self._address or "local", "log_to_driver": False}
        if not self._address:
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        elif self._address != "auto":
            _check_address(self._address)
        try:
            self._ray.init(logging_level=logging.ERROR, configure_logging=False, **options)
        except self._ray.exceptions.AuthenticationError as error:  # there is no token here
            raise _bad_token(self._address) from error
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            if ":" in self._address and ask_without_token(self._address) is grpc.StatusCode.UNAUTHENTICATED:
                raise _bad_token(self._address) from error  # the cluster is there but requires a different token
            raise _no_cluster(self._address, error) from error
        self._owned = True
        if self._address:
            _warn_without_token(self._ray.get_runtime_context().gcs_address)

    def describe(self) -> str:
        """Return the size of the cluster."""
        found = self._ray.cluster_resources()
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        return f"Ray, {nodes} {'node' if nodes == 1 else 'nodes'}, {found.get('CPU', 0):.0f} CPUs"

    def search(
        self, metric: Metric, queries: Records, candidates: Records, k: int, options: BackendOptions
    ) -> tuple[Integers, Floats, str]:
        """Search tables that are in memory."""
        with self:
            return search_by_tiles(self, metric, queries, candidates, k, options)

    def search_tiles(self, chunk: CandidateChunk, tiles: Iterable[QueryTile]) -> Iterator[tuple[int, TileBest, str]]:
        """Yield the results of tiles as they are found; a few tiles per worker are in progress."""
        remaining = iter(tiles)
        first = next(remaining, None)
        if first is None:
            return
        resources = self._resources(chunk, first.records)
        records, name = self._ray.put(chunk.records), secrets.token_hex(8)
        waiting: dict[Any, QueryTile] = {}

        def submit(tile: QueryTile) -> None:
            task = self._ray.remote(_run_task).options(max_retries=MAX_RETRIES, **resources)
            options = replace(chunk.options, threads=int(resources["num_cpus"]))
            chunk_without_records = replace(chunk, records=None, options=options)
            waiting[task.remote(VERSION, name, chunk_without_records, records, tile)] = tile

        def next_result() -> tuple[int, TileBest, str]:
            nonlocal resources
            while not (done := self._ray.wait(list(waiting), num_returns=1, timeout=NODE_CHECK_SECONDS)[0]):
                if any(_fits(node, resources) for node in self._nodes()):
                    continue
                # Ray would wait forever for a node as large as a lost one: request what the others have.
                log.warning("no node of the Ray cluster fits a task any more; restarting tiles with fewer resources")
                resources = self._resources(chunk, first.records)
                stuck = [waiting.pop(reference) for reference in self._cancel(waiting)]
                for tile in stuck:
                    submit(tile)
            (ready,) = done
            return waiting.pop(ready).number, *self._result(ready)

        try:
            for tile in chain([first], remaining):
                submit(tile)
                while len(waiting) >= self._most_tasks(resources):
                    yield next_result()
            while waiting:
                yield next_result()
        finally:
            self._cancel(waiting)

    def _cancel(self, references: Iterable[Any]) -> list[Any]:
        """Cancel tasks and return them."""
        cancelled = list(references)
        for reference in cancelled:
            self._ray.cancel(reference, force=True)
        return cancelled

    def _resources(self, chunk: CandidateChunk, queries: Records) -> dict[str, float]:
        """Return the resources a task takes from its node, so that Ray starts no more tasks than fit."""
        tables = chunk.metric, queries, chunk.records, chunk.k
        on_cpu = chunk.metric.backends(*tables[1:])[0]
        nodes = self._nodes()
        threads = min(chunk.options.threads or 1, max(int(node.get("CPU", 0)) for node in nodes))
        largest = max(node.get("memory", 0) for node in nodes if node.get("CPU", 0) >= threads)
        needed = record_bytes(queries) + (0 if on_cpu.exhaustive else INDEX_FACTOR * record_bytes(chunk.records))
        return {"num_cpus": threads, "memory": int(min(needed, 0.9 * largest))}

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of every node that is alive and can run tasks."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not nodes:
            message = "no node of the Ray cluster has a CPU left; start one and run the command again"
            raise DeviceError(message, code="engine-failed", reason="no node")
        return nodes

    def _most_tasks(self, resources: dict[str, float]) -> int:
        """Return how many tasks may be in progress; nodes come and go."""
        found = self._ray.cluster_resources()
        return max(1, TASKS_PER_WORKER * int(found.get("CPU", 0) / resources["num_cpus"]))

    def _result(self, ready: Any) -> tuple[TileBest, str]:
        errors = self._ray.exceptions
        try:
            found: tuple[TileBest, str] = self._ray.get(ready)
        except errors.RayTaskError as error:
            if isinstance(error.cause, FedSimError):
                raise error.cause from None
            reason = type(error.cause).__name__
            message = f"a task failed on Ray ({reason}); install the same fedsim-vfl on every node"
            raise DeviceError(message, code="engine-failed", reason=reason) from error
        except errors.RayError as error:
            message = f"a task failed on Ray ({type(error).__name__}); check memory and logs of its nodes"
            raise DeviceError(message, code="engine-failed", reason=type(error).__name__) from error
        return found


def _fits(node: Mapping[str, float], resources: Mapping[str, float]) -> bool:
    """Return whether a node is large enough for a task, even if it is currently busy."""
    names = {"CPU": "num_cpus", "memory": "memory"}
    return all(node.get(name, 0) >= resources[needed] for name, needed in names.items())


def ask_without_token(address: str) -> grpc.StatusCode:
    """Return how a cluster answers a caller without a token: OK if it accepts anyone, UNAUTHENTICATED if it does not.

    Ray's own setting only determines what this process sends. A cluster with TLS is UNAVAILABLE to this caller.
    """
    method = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # an empty message is a valid request
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(method)(b"", timeout=TOKEN_CHECK_SECONDS)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@cache
def _warn_without_token(address: str) -> None:
    """Warn once that a cluster accepts anyone."""
    if ask_without_token(address) is grpc.StatusCode.OK:
        fix = "stop it, run `ray get-auth-token --generate`, copy ~/.ray/auth_token to every node and start it again"
        log.warning("the Ray cluster requires no token: anyone who reaches its ports can run code on it; %s", fix)


def _check_address(address: str) -> None:
    """Raise an error at once if nothing listens at an address; Ray would wait for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        message = f"'{address}' is not the address of a Ray cluster; give HOST:PORT, such as 10.0.0.5:6379, or auto"
        raise SettingError(message, code="bad-engine-address", value=address)
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> DeviceError:
    if not address:
        message = f"Ray cannot be started here ({type(error).__name__}); check free memory and the space in /tmp"
        return DeviceError(message, code="engine-not-started")
    message = f"no Ray cluster found at '{address}' ({type(error).__name__}); start it on this machine with `ray start`"
    return DeviceError(f"{message}, or use engine ray without an address", code="no-cluster", address=address)


def _bad_token(address: str) -> DeviceError:
    message = f"the Ray cluster at '{address}' refuses this machine's token, or there is none; copy ~/.ray/auth_token"
    return DeviceError(
        f"{message} from the first node, and set RAY_AUTH_MODE=token", code="cluster-token-refused", address=address
    )


_memory: tuple[str, SearchMemory] = ("", SearchMemory())


def _run_task(
    version: str, name: str, chunk_without_records: CandidateChunk, records: Any, tile: QueryTile
) -> tuple[TileBest, str]:
    """Search one tile, in a worker of the cluster."""
    global _memory  # noqa: PLW0603 - the index outlives the task
    if version != VERSION:
        message = f"a node of the cluster has fedsim-vfl {VERSION}, the driver {version}; install the same version"
        raise SettingError(message, code="version-mismatch")
    if _memory[0] != name:
        _memory = (name, SearchMemory())
    return search_tile(replace(chunk_without_records, records=records), tile, _memory[1])
