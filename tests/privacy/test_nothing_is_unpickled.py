"""Bytes of others never become anything but numbers and text: nothing in the package can make them run."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsim
from fedsim.linkage.private_linkage import LinkageConfig, link_encoded_tables
from fedsim.protocol.cut_layer import wire_format
from fedsim.protocol.handshake import SessionConnector
from fedsim.protocol.messages import Farewell, Party
from fedsim.protocol.roles.coordinator_role import Coordinator, LinkLimits
from fedsim.protocol.roles.primary_role import EncodedQueries, RemoteSecondary, fetch_partners
from fedsim.protocol.roles.secondary_role import RequestCounter, RequestLimits, SecondaryResponder, fetch_row_mapping
from fedsim.protocol.transport import offer_digest
from fedsim.splitnn.secondary_model import start_secondary
from fedsim.types import EncodedTable
from session_fixtures import CITY, NOTARY, RENTALS, connection_of, joined, receiving, started
from training_fixtures import encoded_config, small_secondaries

SOURCES = sorted(Path(fedsim.__file__).parent.rglob("*.py"))
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "os.system", "os.popen"}
SWITCHES = {("shell", True), ("allow_pickle", True), ("weights_only", False)}


def offences(source: str) -> set[str]:
    """What a file does that could make bytes run."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {(node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    given = {(word.arg, getattr(word.value, "value", None)) for call in calls for word in call.keywords}
    switches = {word for word, value in given if any(word == name and value is bad for name, bad in SWITCHES)}
    return imported & MODULES | {ast.unparse(call.func) for call in calls} & CALLS | switches


def test_no_file_can_make_bytes_run():
    found = {str(path): offences(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert len(found) > 100
    assert not {name: what for name, what in found.items() if what}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import yaml as y",
        "eval('1')",
        "[exec(x) for x in y]",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "subprocess.run(x, shell=True)",
        "np.load(f, allow_pickle=True)",
        "os.system('ls')",
    ],
)
def test_the_gate_finds_what_it_looks_for(source):
    assert offences(source)


def test_the_gate_lets_pass_what_only_sounds_alike():
    assert not offences("network.eval()\nnp.load(f, allow_pickle=False)\nre.compile('x')\nrun(x, shell=False)")


# --- a whole exchange without it ---------------------------------------------------------------------------------

FEATURES, BELOW = small_secondaries()[0].features, encoded_config().secondary
ROWS = torch.tensor([0, 3, 4])


def encoded(n, seed):
    ones = np.random.default_rng(seed).integers(0, 2, (n, 61), dtype=np.uint8)
    return EncodedTable(np.packbits(ones, axis=1), 61, "ab" * 32)


QUERIES, CANDIDATES, COUNTED = encoded(12, 0), encoded(9, 1), np.arange(12) < 8
LINKING = LinkageConfig("hamming", 3, sigma=0.5)


@pytest.fixture
def no_unpickling(monkeypatch):
    """Fail the test on any unpickling from now on."""
    link_encoded_tables(QUERIES, CANDIDATES, COUNTED, LINKING, bytes(32), "rentals")  # numba's own cache is read before

    def refuse(*_, **__):
        pytest.fail("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)


@pytest.mark.usefixtures("no_unpickling")
def test_parties_join_link_and_train_without_unpickling_anything(tmp_path):
    coordinator = Coordinator({"rentals": LINKING}, bytes(32), tmp_path / "lists", limits=LinkLimits(10, 10))
    with receiving(connection_of(NOTARY), CITY, RENTALS) as notary, receiving(connection_of(CITY), RENTALS) as city:
        second = started(secondary, tmp_path, notary[1], city[1])
        coordinator_side = [started(attend, coordinator, notary[0], party) for party in (CITY, RENTALS)]
        session = SessionConnector(connection_of(CITY), notary[1], "endpoint", NOTARY).open()
        digest = offer_digest(QUERIES, COUNTED.astype(np.uint8))
        table = EncodedQueries("rentals", QUERIES, COUNTED, digest, LINKING)
        assert fetch_partners(session, table, "").partner.shape == (12, 3)
        learnt = trained(RemoteSecondary(city[0].session_with(RENTALS), wire_format("float32")))
        session.send(Farewell())
        joined(second, *coordinator_side)
    assert torch.isfinite(learnt).all()


def attend(coordinator: Coordinator, acceptor, party: Party):
    coordinator.serve(acceptor.session_with(party))


def secondary(folder, to_notary, to_city):
    """All that a secondary does."""
    session = SessionConnector(connection_of(RENTALS), to_notary, "endpoint", NOTARY).open()
    order = fetch_row_mapping(session, CANDIDATES, offer_digest(CANDIDATES), "", LINKING)
    session.send(Farewell())

    def start(total_steps):
        return start_secondary("rentals", FEATURES, BELOW, total_steps=total_steps, folder=folder / "checkpoints")

    role = SecondaryResponder(
        width=4,
        order=order,
        requests=RequestCounter(RequestLimits(2, 2, 2, 9, 0), folder),
        start=lambda asked: start(asked.total_steps),
        load_trained=lambda: start(1),
        finish=lambda party: party.keep_best(),
        on_new_rows=lambda rows: None,
        on_farewell=lambda: None,
        form=wire_format("float32"),
    )
    role.serve(SessionConnector(connection_of(RENTALS), to_city, "endpoint", CITY).open())


def trained(party):
    """Two steps, a checkpoint and back."""
    party.begin(2)
    for step in range(2):
        party.descend(torch.ones_like(party.activations(ROWS, step)), step)
        party.save(step + 1)
    party.restore(1)
    party.finish()
    found = party.infer(ROWS)
    party.session.send(Farewell())
    return found
