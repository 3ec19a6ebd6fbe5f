"""Two or three organisations without a coordinator: links, training, budgets, restarts and later jobs."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime

import polars as pl
import pytest

from e2e.party_threads import mutual_tls, run_in_threads
from e2e.process_hooks import fatal
from error_fixtures import raises
from fedsim.cli import main
from fedsim.errors import PeerError, PolicyError
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.oprf import SecretKey
from fedsim.linkage.private_linkage import load_private_links
from fedsim.preflight.check import check_job
from fedsim.preflight.estimate import NetworkLink
from fedsim.protocol.messages import Role
from fedsim.protocol.roles.primary_role import RemoteSecondary
from fedsim.protocol.transport import decode
from fedsim.runs.run_folder import PROGRESS_FILE, links_path, open_audit_log, read_audit_log, run_path
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import CITY, RENTALS, LocalJob, create_local_job, small_tables
from fedsim_lab.faults.processes import party_processes
from privacy.test_canaries import Recorded

PRICE = pl.col("price")


def run_here(place: LocalJob) -> dict[str, list[int]]:
    """The sizes of all messages, by kind."""
    sizes: dict[str, list[int]] = {}
    for entry in run_local(place.job, [place.own(name) for name in place.names]).ledger:
        sizes.setdefault(entry.kind, []).append(entry.bytes)
    return sizes


def evaluated(place: LocalJob) -> int:
    return KeyStore(place.own(RENTALS).folder / "keys").record(RENTALS).evaluated[CITY]


def test_parties_over_mutual_tls_learn_what_one_process_learns(tmp_path):
    here, there = (create_local_job(tmp_path / name, n_secondaries=2, direct=True) for name in "ab")
    run_here(here)
    ledgers = run_in_threads(there)
    assert there.hashes() == here.hashes()
    kinds = {entry.kind for entry in ledgers[CITY]}
    assert {"fetch-table", "table-part", "evaluate", "evaluated"} <= kinds
    assert not kinds & {"ask", "infer", "activations", "gradients", "offer", "queries"}


def test_two_parties_that_only_dial_out_meet_at_a_relay(tmp_path):
    there, here = (create_local_job(tmp_path / name, direct=True, relay=name == "there") for name in ("there", "here"))
    run_here(here)
    with party_processes(there, {}) as parties:
        parties.start()
        assert parties.finish() == here.hashes()


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        (CITY, "fedsim.protocol.roles.primary_role:file_digest"),  # the table is here, under another name
        (CITY, "fedsim.linkage.direct.exchange:TokenValues.add"),
        (CITY, "fedsim.runtime.partner_rows:StoredRows.save"),  # the rows are here, and the secondary does not know
        (CITY, "fedsim.runtime.primary:fit"),  # the secondary may be gone
        (RENTALS, "fedsim.linkage.direct.key_store:KeyStore.charge"),  # counted, and not answered
        (RENTALS, "fedsim.linkage.direct.encrypted_table:EncryptedTable.save"),
        (RENTALS, "fedsim.runtime.run_store:RunStore.save_weights"),  # done, and the primary was not told
    ],
)
def test_a_kill_changes_nothing_and_costs_nothing(tmp_path, name, moment):
    quiet, shot = (create_local_job(tmp_path / folder, direct=True) for folder in ("quiet", "shot"))
    run_here(quiet)
    with party_processes(shot, {name: fatal(moment)}) as parties:
        parties.start()
        assert parties.running[name].wait() == -9, parties.logs()
        parties.before = {}
        parties.start(name)
        assert parties.finish() == quiet.hashes()
    assert evaluated(shot) == evaluated(quiet)


def test_another_job_on_the_same_tables_has_nothing_evaluated_and_shows_nothing_new(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    run_here(place)
    before, table = evaluated(place), list((place.own(RENTALS).folder / "tables").iterdir())
    dates = [path.stat().st_mtime_ns for path in table]
    place.job_path.write_text(place.job_path.read_text().replace("seed = 7", "seed = 8"))
    place.approve()
    assert "evaluate" not in run_here(place)
    assert evaluated(place) == before
    assert [path.stat().st_mtime_ns for path in table] == dates


def test_a_table_with_other_features_does_not_replace_one_that_another_job_may_be_sending(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True, secondaries={RENTALS: {"m": 1}})
    run_here(place)
    folder = place.own(RENTALS).folder / "tables"
    (table,) = folder.iterdir()
    before = table.read_bytes()
    place.job_path.write_text(place.job_path.read_text().replace("seed = 7", "seed = 8"))
    place.change_party(RENTALS, features={"drop": ["rooms"]})
    place.approve()
    run_here(place)
    assert table.read_bytes() == before
    assert len(list(folder.iterdir())) == 2


def change_job(place: LocalJob, before: str, after: str) -> None:
    """Approve another job on the same tables."""
    text = place.job_path.read_text()
    assert text.count(before) == 1
    place.job_path.write_text(text.replace(before, after))
    place.approve()


@pytest.mark.parametrize("share", ["rows", "averages"])
def test_groups_are_the_same_over_mutual_tls_and_no_other_job_may_draw_them_anew(tmp_path, share, capsys):
    terms = {"share": share, "m": 4}
    here, there = (create_local_job(tmp_path / name, direct=True, secondaries={RENTALS: terms}) for name in "ab")
    run_here(here)
    run_in_threads(there)
    assert there.hashes() == here.hashes()
    keys = KeyStore(here.own(RENTALS).folder / "keys")
    (shown,) = keys.record(RENTALS).shown
    assert (shown.primary, shown.share, shown.m) == (CITY, share, 4)
    assert shown.vectors <= 90 // 4
    with pytest.raises(SystemExit):
        main(["privacy", "ledger", str(here.path(RENTALS)), "--json"])
    ledger = json.loads(capsys.readouterr().out)
    assert (ledger["shown"][0]["vectors"], ledger["terms"]["m"]) == (shown.vectors, 4)
    assert ledger["left"][CITY]["jobs"] == 99
    change_job(here, "m = 4", "m = 5")
    with raises(PolicyError, "terms-bound", changed=["m"]):
        run_here(here)


def test_a_row_that_comes_changes_no_average_that_was_shown(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True, secondaries={RENTALS: {"m": 4}})
    run_here(place)
    keys = KeyStore(place.own(RENTALS).folder / "keys")
    first = keys.record(RENTALS)
    table = pl.read_csv(place.folder / f"{RENTALS}.csv")
    table.vstack(table[:1].with_columns(pl.col("lat") + 0.001)).write_csv(place.folder / f"{RENTALS}.csv")
    change_job(place, "seed = 7", "seed = 8")
    run_here(place)
    one, other = (of.vectors for of in keys.record(RENTALS).shown)
    assert one == other
    assert keys.record(RENTALS).groups != first.groups  # the row is recorded, and in no group


def test_a_damaged_table_is_built_anew_and_those_of_a_rotated_key_are_removed(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    run_here(place)
    (table,) = (place.own(RENTALS).folder / "tables").iterdir()
    content = table.read_bytes()
    table.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (table.parent / "0123456789abcdef-old.safetensors").touch()
    place.job_path.write_text(place.job_path.read_text().replace("seed = 7", "seed = 8"))
    place.approve()
    run_here(place)
    assert [path.read_bytes() for path in table.parent.iterdir()] == [content]


@pytest.mark.parametrize("where", ["job", "policy"])
def test_tokens_beyond_the_budget_are_refused_before_any_work(tmp_path, where):
    limit = {"max_tokens": 100}
    place = create_local_job(
        tmp_path / "job", direct=True, **({"secondaries": {RENTALS: limit}} if where == "job" else {})
    )
    if where == "policy":
        place.change_party(RENTALS, policy=limit)
    with raises(PolicyError, "over-budget", limit=100, left=100):
        run_here(place)
    assert not KeyStore(place.own(RENTALS).folder / "keys").record(RENTALS).evaluated


def test_check_counts_tokens_exactly_with_both_tables_and_states_a_bound_with_one(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    paths = [place.own(name).path for name in place.names]
    both, one = (
        check_job(place.job_path, here, link=NetworkLink(), now=datetime.now(UTC), call_peers=False).estimate
        for here in (paths, paths[:1])
    )
    sizes = run_here(place)
    sent = sum(size for kind in ("fetch-table", "table-part", "evaluate", "evaluated") for size in sizes[kind])
    assert both.linkage_bytes == pytest.approx(sent, rel=0.02)
    assert both.linkage_bytes < one.linkage_bytes
    assert (both.bounded, one.bounded, both.training_bytes.most) == (False, True, 0)


def test_a_secondary_receives_random_points_and_nothing_that_depends_on_a_label(tmp_path):
    prices = (PRICE, 1e6 - PRICE.shuffle(seed=1), pl.when(PRICE.quantile(0.3) < PRICE).then(PRICE))
    received = []
    for at, column in enumerate(prices):
        tables = small_tables()
        tables[CITY] = tables[CITY].with_columns(price=column)
        place, frames = create_local_job(tmp_path / str(at), tables=tables, direct=True), []
        run_in_threads(place, lambda own, frames=frames: Recorded(mutual_tls(own), own.party, frames, [None] * 9))
        to_secondary = (frame for _, peer, frame in frames if peer is not None and peer.role is Role.SECONDARY)
        messages = [decode(frame).message for frame in to_secondary]
        received.append([one for one in messages if one.kind not in ("hello", "welcome", "notice")])
    for other in received[1:]:
        for one, two in zip(received[0], other, strict=True):
            assert one.kind == two.kind
            if one.kind == "evaluate":
                assert one.blinded.shape == two.blinded.shape
            else:
                assert vars(one) == vars(two)
    assert {one.kind for one in received[0]} == {"meet", "fetch-table", "evaluate", "finish", "farewell"}


def test_rows_of_a_table_whose_key_was_rotated_are_not_mixed_with_those_of_the_next(tmp_path, monkeypatch):
    tables = small_tables(rentals=20)  # every row is a partner, so the pseudonyms of both tables are the same
    quiet, stopped = (create_local_job(tmp_path / name, tables=tables, direct=True) for name in ("quiet", "stopped"))
    with monkeypatch.context() as patch, raises(PeerError, "stopped"):
        patch.setattr(RemoteSecondary, "finish", stop)  # the rows are here, and the secondary is not released
        run_here(stopped)
    for place in (quiet, stopped):
        keys = KeyStore(place.own(RENTALS).folder / "keys")
        keys.destroy(RENTALS, datetime.now(UTC))
        keys.create(RENTALS, datetime.now(UTC), SecretKey.derive(bytes(32), b"next"))
        run_here(place)
    assert stopped.hashes() == quiet.hashes()


def stop(_):
    raise PeerError("stopped", code="stopped")


def test_both_parties_publish_and_log_how_far_evaluation_and_table_are(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fedsim.runtime.party_context.LOG_SECONDS", 0.0)
    caplog.set_level("INFO", "fedsim.parties")
    place = create_local_job(tmp_path / "job", direct=True)
    run_here(place)
    for name, rows in zip(place.names, (len(table) for table in small_tables().values()), strict=False):
        run = run_path(place.job, place.own(name))
        facts = json.loads((run / PROGRESS_FILE).read_text())["linking"][RENTALS]
        assert (facts["done"], facts["total"]) == (rows, rows)
    whole = [record for record in caplog.records if record.args and record.args[1:2] == (100.0,)]
    assert {record.args[2] for record in whole} == {"new tokens", "the encrypted table"}


def test_both_audit_logs_say_what_was_exchanged(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    run_here(place)
    logs = {name: [one.what for one in read_audit_log(open_audit_log(place.own(name)).path)] for name in place.names}
    assert {"table received", "tokens sent", "rows received"} <= set(logs[CITY])
    assert {"key created", "table built", "table sent", "tokens evaluated", "budget"} - set(logs[RENTALS]) == {
        "key created"  # the key is fixed in this job
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("", "marine trading"),
        ("--", " "),
        ("marine trading", "marine trading"),  # as often as no list is long
        ("marine trading", None),
    ],
    ids=["empty", "no words", "equal", "fewer than k"],
)
def test_names_that_link_nothing_leave_every_record_with_nobody(tmp_path, ours, theirs):
    tables = small_tables()
    tables[CITY] = tables[CITY].with_columns(name=pl.lit(ours))
    names = [theirs] * 2000 if theirs else ["olter venn", "mool pral", "sunnel quist"]
    tables[RENTALS] = pl.DataFrame({"name": names, "rent": range(len(names))})
    terms = {"k": 5, "m": 1, "tokens": [{"columns": ["name"], "kind": "text"}]}
    place = create_local_job(
        tmp_path / "job", tables=tables, direct=True, secondaries={RENTALS: terms}, training={"epochs": 1}
    )
    run_here(place)
    links = load_private_links(links_path(place.run(CITY), RENTALS))
    assert (links.partner == len(names)).all()


def test_neither_a_restart_nor_a_copy_of_the_run_resets_the_count(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    run_here(place)
    once = evaluated(place)
    shutil.rmtree(place.own(CITY).folder / "tokens")  # so that the primary has to ask for all of them again
    shutil.copytree(place.run(RENTALS), tmp_path / "copy")
    run_local(place.job, [place.own(name) for name in place.names], again=True)
    shutil.rmtree(place.run(RENTALS))
    shutil.copytree(tmp_path / "copy", place.run(RENTALS))
    assert evaluated(place) == 2 * once
    place.change_party(RENTALS, policy={"max_tokens": 2 * once + 15})
    shutil.rmtree(place.own(CITY).folder / "tokens")
    with raises(PolicyError, "over-budget", limit=2 * once + 15, left=15):
        run_local(place.job, [place.own(name) for name in place.names], again=True)
