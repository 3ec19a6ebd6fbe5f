"""A blind coordinator links as a plain one does, over any transport and through kills, and receives no encoding."""

from __future__ import annotations

import numpy as np
import pytest

from e2e.party_threads import mutual_tls, run_in_threads
from e2e.process_hooks import fatal
from fedsim.config.toml_file import ConfigFileError
from fedsim.linkage import blind_linkage
from fedsim.linkage.private_linkage import PrivateLinks, load_private_links
from fedsim.protocol.transport import decode
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, SCHOOLS, LocalJob, create_local_job
from fedsim_lab.faults.processes import each, party_processes, setting
from privacy.test_canaries import ALWAYS, C, P, Recorded, S

NOISY, QUIET = {RENTALS: {"tau": None, "sigma": 0.4}}, {RENTALS: {"tau": None}, SCHOOLS: {"sigma": None}}
BLIND = {"protection": {"coordinator": "blind"}, "secondaries": NOISY}
SMALL_TILES = setting("fedsim.linkage.blind_linkage", "TILE_PAIRS", 400)


def links(place: LocalJob) -> list[PrivateLinks]:
    paths = sorted((place.run(CITY) / "lists").glob("*.safetensors"))
    return [load_private_links(path) for path in paths]


def same(one: LocalJob, other: LocalJob) -> bool:
    pairs = list(zip(links(one), links(other), strict=True))
    equal = [np.array_equal(a.partner, b.partner) and a.vectors.tobytes() == b.vectors.tobytes() for a, b in pairs]
    return bool(pairs) and all(equal)


def test_partners_weights_and_similarities_are_those_of_a_plain_coordinator(tmp_path):
    jobs = {"n_secondaries": 2, "secondaries": QUIET}
    plain = create_local_job(tmp_path / "plain", **jobs)
    blind = create_local_job(tmp_path / "blind", **BLIND | jobs)
    for place in (plain, blind):
        run_local(place.job, [place.own(name) for name in place.names])
    assert same(plain, blind)


def test_noise_and_small_tiles_give_the_same_over_grpc_and_no_encoding_reaches_the_coordinator(tmp_path, monkeypatch):
    here, there = (create_local_job(tmp_path / name, n_secondaries=2, **BLIND) for name in "ab")
    run_local(here.job, [here.own(name) for name in here.names])
    frames: list = []
    monkeypatch.setattr(blind_linkage, "TILE_PAIRS", 400)
    run_in_threads(there, lambda own: Recorded(mutual_tls(own), own.party, frames, [None] * 9))
    assert same(here, there)
    assert there.hashes() == here.hashes()
    sent: dict = {}
    for sender, receiver, frame in frames:
        kind = decode(frame).message.kind
        if receiver is not None and kind not in ALWAYS:
            sent.setdefault((sender.role, receiver.role), set()).add(kind)
    assert sent[C, P] == {"deal", "opened", "done"}
    assert sent[C, S] == {"deal", "correction", "done"}
    assert sent[P, C] == {"blind-queries", "share", "finish"}
    assert sent[S, C] == {"blind-candidates", "ask-correction", "share"}
    assert {"blind-begin", "ask-vectors", "masked-tile", "ask-members"} <= sent[P, S]
    assert {"blind-ready", "masked-vectors", "members"} <= sent[S, P]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    place = create_local_job(tmp_path_factory.mktemp("quiet") / "job", **BLIND)
    run_local(place.job, [place.own(name) for name in place.names])
    return place


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        (CITY, "fedsim.protocol.roles.blind_primary:BlindRequest._members"),
        (RENTALS, "fedsim.protocol.roles.blind_secondary:BlindResponder._masked_vectors"),
        (NOTARY, "fedsim.linkage.blind_linkage:open_tile"),  # both shares were here
    ],
)
def test_a_kill_changes_nothing(quiet, tmp_path, name, moment):
    shot = create_local_job(tmp_path / "shot", **BLIND)
    before = dict.fromkeys(quiet.names, SMALL_TILES)
    with party_processes(shot, before | {name: each(SMALL_TILES, fatal(moment))}) as parties:
        parties.start()
        assert parties.running[name].wait() == -9, parties.logs()
        parties.before = before
        parties.start(name)
        assert parties.finish() == quiet.hashes()
    assert same(quiet, shot)


@pytest.mark.parametrize(
    "terms",
    [{"min_degree": 2}, {"dummies": 0.1}, {"tau": 0.2, "sigma": None}, {"metric": "dice", "relative": True}],
)
def test_terms_that_need_a_seeing_coordinator_are_refused(tmp_path, terms):
    with pytest.raises(ConfigFileError) as refused:
        create_local_job(tmp_path / "job", **BLIND | {"secondaries": {RENTALS: NOISY[RENTALS] | terms}})
    assert refused.value.faults
