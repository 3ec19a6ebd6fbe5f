"""The job file: its meaning, its hash, and the errors for invalid files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedsim.config.job import Job, read_job
from fedsim.config.toml_file import ConfigFault, ConfigFileError
from fedsim.errors import SettingError
from fedsim.protocol.messages import Party, Role
from fedsim.registry import METHODS, METRICS, PRESETS, Registry
from fedsim.validation import first_difference

TEXT = (Path(__file__).parents[2] / "golden" / "job.toml").read_text(encoding="utf-8")


def job_of(folder: Path, text: str) -> Job:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8", newline="")
    return read_job(path)


def first_fault(folder: Path, text: str) -> ConfigFault:
    with pytest.raises(ConfigFileError) as caught:
        job_of(folder, text)
    return caught.value.faults[0]


def test_parties_stand_in_one_order_and_only_two_are_dialled(tmp_path):
    job = job_of(tmp_path, TEXT)
    assert [str(party) for party in job.parties] == [
        "coordinator 'notary'",
        "primary 'city'",
        "secondary 'rentals'",
        "secondary 'schools'",
    ]
    assert job.address_of(Party(Role.PRIMARY, "city")) == "127.0.0.1:50052"
    with pytest.raises(SettingError) as caught:
        job.address_of(Party(Role.SECONDARY, "rentals"))
    assert caught.value.code == "no-address"


def test_neither_the_layout_of_the_file_nor_an_address_changes_the_hash(tmp_path):
    head, schools, rentals = TEXT.partition("[secondaries.rentals]")[0], "[secondaries.schools]", ""
    start = head.index(schools)
    rentals = TEXT[len(head) :]
    turned = head[:start] + rentals + "\n# a comment\n" + head[start:]
    spelt = turned.replace("seed = 7", "seed=0x7").replace("tau = 0.01", "metric = 'hamming'\ntau = 1e-2")
    expected = job_of(tmp_path, TEXT)
    assert job_of(tmp_path, spelt).hash == expected.hash
    assert list(job_of(tmp_path, spelt).secondaries) == list(expected.secondaries)
    assert job_of(tmp_path, "\ufeff" + TEXT.replace("\n", "\r\n")).hash == expected.hash
    assert job_of(tmp_path, TEXT.replace("50051", "50053")).hash == expected.hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 7", "seed = 8"),
        ("epochs = 40", "epochs = 41"),
        ("tau = 0.01", "tau = 0.011"),
        ("threshold = 365", "threshold = 364"),
        ("wait_seconds = 60", ""),
    ],
)
def test_any_changed_setting_changes_the_hash_and_can_be_named(tmp_path, old, new):
    before, after = job_of(tmp_path, TEXT), job_of(tmp_path, TEXT.replace(old, new))
    assert before.hash != after.hash
    assert first_difference(before.to_dict(), after.to_dict()).startswith("job.")


@pytest.mark.parametrize(
    ("old", "new", "code", "setting", "line"),
    [
        ("epochs = 40", "epoch = 40", "unknown-setting", "training.epoch", 20),
        ("epochs = 40", "epochs = 0", "invalid-value", "training.epochs", 20),
        ("epochs = 40", "epochs = 4.5", "invalid-value", "training.epochs", 20),
        ("epochs = 40", "epochs = true", "invalid-value", "training.epochs", 20),
        ("epochs = 40", "epochs = 0x" + "f" * 99, "invalid-value", "training.epochs", 20),
        ("learning_rate = 0.002", "learning_rate = nan", "invalid-value", "training.learning_rate", 21),
        ('"group"', '"groups"', "unknown-choice", "task.split", 15),
        ('"fedsim"', '"fedsm"', "unknown-choice", "training.method", 19),
        ('"modern"', '"modren"', "unknown-choice", "training.preset", 18),
        ('"dice"', '"euclidean"', "unknown-choice", "secondaries.schools.metric", 28),
        ('name = "flats"', 'name = "Flats/.."', "invalid-value", "name", 2),
        ("127.0.0.1:50051", "127.0.0.1", "invalid-address", "coordinator.address", 7),
        ("127.0.0.1:50051", "127.0.0.1:0", "invalid-address", "coordinator.address", 7),
        ("127.0.0.1:50051", "127.0.0.1:70000", "invalid-address", "coordinator.address", 7),
        ("127.0.0.1:50051", "relay://127.0.0.1", "invalid-address", "coordinator.address", 7),
        ("127.0.0.1:50051", "relay://hub:7400/A/b", "invalid-address", "coordinator.address", 7),
        ("127.0.0.1:50051", "hub:7400/flats", "invalid-address", "coordinator.address", 7),
        ("50052", "50051", "duplicate-address", "primary", 9),
        ('"fedsim"', '"avgsim"\nparty_dropout = 0.1', "needs-every-secondary", "training.party_dropout", 20),
        ('"city"', '"notary"', "duplicate-name", "secondaries", 26),
        ("schools", "City", "invalid-name", "secondaries.City", 26),
        ("sigma = 0.4", "sigma = 0.4\ntau = 0.1", "tau-and-sigma", "secondaries.schools.sigma", 29),
        ("sigma = 0.4", "sigma = 0", "invalid-value", "secondaries.schools.sigma", 29),
        ("sigma = 0.4", "sgima = 0.4", "unknown-setting", "secondaries.schools.sgima", 29),
        ("k = 50", "", "missing-setting", "secondaries.rentals.k", 38),
        ("low = 39,", "low = 49,", None, "secondaries.rentals.schema", 42),
        ("low = 39", "lwo = 39", None, "secondaries.rentals.schema", 42),
        ("[task]", "[tasks]", "unknown-setting", "tasks", 13),
    ],
)
def test_a_fault_has_a_code_the_setting_and_its_line(tmp_path, old, new, code, setting, line):
    assert old in TEXT
    fault = first_fault(tmp_path, TEXT.replace(old, new))
    assert (fault.setting, fault.line) == (setting, line)
    assert code is None or fault.code == code


@pytest.mark.parametrize(
    ("old", "new", "near"),
    [
        ("epochs = 40", "epoch = 40", "epochs"),
        ('"group"', '"groups"', "group"),
        ('"fedsim"', '"fedsm"', "fedsim"),
        ("low = 39", "lwo = 39", "low"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_one(tmp_path, old, new, near):
    assert f"did you mean '{near}'?" in first_fault(tmp_path, TEXT.replace(old, new)).message


@pytest.mark.parametrize("method", sorted(set(METHODS.names()) - set(METHODS.names(in_jobs=True))))
def test_methods_for_simulations_cannot_be_used_in_a_job(tmp_path, method):
    fault = first_fault(tmp_path, TEXT.replace('"fedsim"', f'"{method}"'))
    assert (fault.code, fault.setting) == ("unknown-choice", "training.method")


@pytest.mark.parametrize(
    ("registry", "old"),
    [(METHODS, '"fedsim"'), (PRESETS, '"modern"'), (METRICS, '"dice"')],
    ids=["method", "preset", "metric"],
)
def test_a_choice_registered_by_another_package_is_valid_in_a_job(tmp_path, registry: Registry, old):
    text = TEXT.replace(old, '"mine"')
    with pytest.raises(ConfigFileError):
        job_of(tmp_path, text)
    with registry.temporarily("mine", object(), summary="Mine."):
        assert '"mine"' in job_of(tmp_path, text).model_dump_json()


def test_a_job_needs_a_secondary(tmp_path):
    alone = TEXT[: TEXT.index("[secondaries")]
    assert first_fault(tmp_path, alone).code == "missing-setting"
    assert first_fault(tmp_path, alone + "[secondaries]\n").code == "invalid-value"


def test_files_of_parties_are_read_without_heavy_libraries():
    modules = ["config.job", "config.party_file", "config.policy", "config.settings_schema"]
    modules += ["runs.approval", "runs.run_folder"]
    heavy = "{'torch', 'polars', 'numba', 'scipy', 'sklearn', 'rich', 'grpc'}"
    script = f"import sys, {', '.join('fedsim.' + name for name in modules)}; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def job_of_places(**terms):
    schema = {"version": 1, "fields": [{"column": "lat", "longitude": "lon", "encoding": {"kind": "place"}}]}
    parties = {"coordinator": {"name": "notary", "address": "a:1"}, "primary": {"name": "city", "address": "a:2"}}
    secondaries = {"rentals": {"k": 2, "schema": schema, **terms}}
    return Job.from_dict({"name": "flats", **parties, "task": {"kind": "regression"}, "secondaries": secondaries})


def test_positions_choose_their_metric_and_every_rule_still_holds():
    assert job_of_places(sigma=0.2).secondaries["rentals"].metric == "position"
    blur = {"latitude": "north", "longitude": "lon", "epsilon_per_km": 5}
    wrong = {
        "tau-needs-steps": {"tau": 0.1},
        "metric-unlike-schema": {"metric": "dice"},
        "unknown-column": {"blur": blur},
    }
    for code, terms in wrong.items():
        with pytest.raises(ConfigFileError) as caught:
            job_of_places(**terms)
        assert caught.value.faults[0].code == code


TOKENS = [{"columns": ["lat", "lon"], "kind": "place", "metres": 200}]
DIRECT = {
    "name": "flats",
    "primary": {"name": "city", "address": "127.0.0.1:7412"},
    "task": {"kind": "regression"},
    "secondaries": {"rentals": {"k": 5, "tokens": TOKENS}},
}


def direct(**changes):
    return Job.from_dict({**DIRECT, **changes})


def test_a_job_without_a_coordinator_seals_labels_and_is_the_same_job_written_out():
    job = direct()
    assert job.direct
    assert job.protection.sealed
    assert [party.name for party in job.parties] == ["city", "rentals"]
    assert Job.from_dict(job.to_dict()).hash == job.hash
    others = [
        direct(secondaries={"rentals": {"k": 5, "tokens": [{**TOKENS[0], "metres": 300}]}}),
        direct(secondaries={"rentals": {"k": 5, "tokens": TOKENS, "max_tokens": 10}}),
    ]
    assert len({job.hash, *(other.hash for other in others)}) == 3
    assert direct(primary={"name": "city", "address": "example.org:7412"}).hash == job.hash


def shared(**terms):
    found = direct(secondaries={"rentals": {"k": 5, "tokens": TOKENS, **terms}}).secondaries["rentals"]
    return found.share, found.m


def test_a_secondary_shares_averages_of_close_rows_unless_it_says_otherwise():
    assert shared() == ("rows", 5)
    assert shared(share="averages") == ("averages", 10)
    assert shared(share="rows", m=1) == ("rows", 1)
    protected = {"protection": {"preset": "protected"}}
    assert direct(**protected).secondaries["rentals"].share == "averages"
    asked = {"secondaries": {"rentals": {"k": 5, "tokens": TOKENS, "share": "rows"}}}
    assert direct(**protected, **asked).secondaries["rentals"].share == "rows"


NAMES = [{"columns": ["name"], "kind": "text"}]


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"share": "averages", "m": 1}, "m-too-small"),
        ({"share": "split"}, "needs-coordinator"),
        ({"share": "averages", "tokens": NAMES}, "no-cells"),
        ({"share": "averages", "tokens": [*TOKENS, *NAMES]}, "no-cells"),
        ({"share": "cells"}, "unknown-choice"),
    ],
)
def test_levels_that_cannot_be_are_refused(terms, code):
    with pytest.raises(SettingError) as caught:
        shared(**terms)
    assert caught.value.code == code


@pytest.mark.parametrize(("share", "gradients"), [("averages", None), ("rows", None), ("split", "none")])
def test_with_a_coordinator_the_level_follows_from_the_gradients(share, gradients):
    secondaries = {"rentals": {"k": 5, "schema": SCHEMA, "share": share}}
    with pytest.raises(SettingError) as caught:
        direct(coordinator=NOTARY, secondaries=secondaries, protection={"gradients": gradients})
    assert caught.value.code == "share-unlike-protection"


SCHEMA = {"version": 1, "fields": [{"column": "name", "encoding": {"kind": "string"}}]}
NOTARY = {"name": "notary", "address": "127.0.0.1:7411"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"coordinator": NOTARY}, "needless-coordinator"),
        ({"secondaries": {"rentals": {"k": 5, "schema": SCHEMA}}}, "no-coordinator"),
        ({"secondaries": {"rentals": {"k": 5}}}, "tokens-or-schema"),
        ({"secondaries": {"rentals": {"k": 5, "tokens": TOKENS, "schema": SCHEMA}}}, "tokens-or-schema"),
        ({"secondaries": {"rentals": {"k": 5, "tokens": TOKENS, "sigma": 0.4}}}, "setting-not-applicable"),
        ({"secondaries": {"rentals": {"k": 5, "tokens": [{"columns": ["a"], "kind": "txt"}]}}}, "unknown-kind"),
        (
            {"coordinator": NOTARY, "secondaries": {"rentals": {"k": 5, "schema": SCHEMA, "max_tokens": 3}}},
            "setting-not-applicable",
        ),
    ],
)
def test_tokens_and_a_coordinator_exclude_each_other(changes, code):
    with pytest.raises(SettingError) as caught:
        direct(**changes)
    assert caught.value.code == code
