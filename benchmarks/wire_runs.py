"""One training of hdb in three ways: processes over gRPC, threads of one process through queues, and plain arrays.

Only epochs are timed, not the start. Run as a program, it trains in one of the ways in a folder that ``wire_data`` has
written, and prints the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from fedsim.data.features import fit_preprocessor
from fedsim.linkage.private_linkage import load_private_links
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.session import ConnectionState
from fedsim.protocol.transport import InProcessTransport
from fedsim.runtime.party_context import PartyContext
from fedsim.runtime.primary import prepare_primary, training_config
from fedsim.runtime.run_local import run_local
from fedsim.training import SecondaryData, train
from wire_data import Hdb

LONGEST = 900  # seconds that one run may take


@dataclass(frozen=True)
class Trained:
    """One run: seconds of every epoch, metrics of the test records, and what crossed the border."""

    seconds: list[float]
    test: dict[str, float]
    ledger: list[dict[str, Any]] = field(default_factory=list)
    pairs: int = 0  # of training records and their partners, if the arrays are available

    @property
    def training_bytes(self) -> int:
        """The bytes of all training messages between primary and secondary."""
        return sum(entry["bytes"] for entry in self.ledger if entry["phase"] == "train")


def run(way: str, hdb: Hdb) -> Trained:
    """Train in a separate process."""
    command = [sys.executable, __file__, way, str(hdb.folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LONGEST)  # noqa: S603
    return Trained(**json.loads(done.stdout.splitlines()[-1]))


def over_grpc(hdb: Hdb) -> Trained:
    """Train with three processes on this machine, with mutual TLS."""
    running = [subprocess.Popen(_command(hdb, party)) for party in hdb.job.parties]  # noqa: S603
    try:
        _wait(running)
    finally:
        for process in running:
            process.kill()
    ledger = json.loads((hdb.kept(Role.PRIMARY) / "ledger.json").read_text())
    return Trained(*_journal(hdb), ledger)


def _command(hdb: Hdb, party: Party) -> list[str]:
    return [sys.executable, "-m", "fedsim", "party", str(hdb.folder / "job.toml"), str(hdb.path(party)), "--quiet"]


def _wait(running: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have exited; raise an error as soon as one fails."""
    while None in (codes := [process.poll() for process in running]) or any(codes):
        if any(codes):
            raise RuntimeError(f"the parties exited with {codes}")
        time.sleep(0.1)


def through_queues(hdb: Hdb) -> Trained:
    """Train with the same parties as threads of this process."""
    together = run_local(hdb.job, [hdb.own(party.role) for party in hdb.job.parties])
    return Trained(*_journal(hdb), [asdict(entry) for entry in together.ledger])


def _journal(hdb: Hdb) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of every epoch and the test metrics, as recorded by the primary."""
    lines = (hdb.kept(Role.PRIMARY) / "checkpoints" / "log.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [event["seconds"] for event in events if event["event"] == "epoch"], events[-1]["metrics"]["test"]


def on_arrays(hdb: Hdb) -> Trained:
    """Run the bare training loop on the links of an earlier run in this folder."""
    torch.set_num_threads(hdb.job.training.threads)
    own = hdb.own(Role.PRIMARY)
    post = PartyContext(hdb.job, own, hdb.kept(Role.PRIMARY), ConnectionState(own.party, {}, {}), InProcessTransport())
    prepared = prepare_primary(PartyData.read(hdb.job, own, approved=True), post)
    folder = hdb.folder / "arrays"  # checkpoints, as the parties write them
    secondary = _secondary(hdb)
    result = train(prepared.data, [secondary], prepared.split, training_config(hdb.job), folder=folder)
    pairs = len(prepared.split.train) * np.asarray(secondary.partner).shape[1]
    return Trained([epoch.seconds for epoch in result.history], dict(result.metrics["test"]), pairs=pairs)


def _secondary(hdb: Hdb) -> SecondaryData:
    own = hdb.own(Role.SECONDARY)
    frame = PartyData.read(hdb.job, own, approved=True).features
    features = fit_preprocessor(frame, party=str(own.party)).apply(frame)
    order = load_file(hdb.kept(Role.SECONDARY) / "order.safetensors")["rows"]
    links = load_private_links(hdb.kept(Role.PRIMARY) / "lists" / f"{own.name}.safetensors")
    return SecondaryData(features.take(order), links.partner, links.similarity, name=own.name)


WAYS: dict[str, Callable[[Hdb], Trained]] = {"grpc": over_grpc, "queues": through_queues, "arrays": on_arrays}


if __name__ == "__main__":
    print(json.dumps(asdict(WAYS[sys.argv[1]](Hdb.read(Path(sys.argv[2]))))))
