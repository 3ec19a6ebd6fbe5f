"""A job's words for protection, from the file to the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.errors import FingerprintError, SettingError
from fedsim.linkage.encoding import Key
from fedsim.pipeline.party_table import PartyData
from fedsim.runs.run_folder import TRAINED_MODEL, run_path
from fedsim.runtime.run_local import run_local
from fedsim.runtime.run_store import RunStore, add_feature_noise, network_features
from fedsim.types import Features
from job_fixtures import lay_out, read_all


def trained(folder: Path, changes: dict[str, dict[str, str]], secrets: dict[str, bytes] | None = None):
    folder.mkdir()
    lay_out(folder, changes)
    job, files = read_all(folder)
    for name, secret in (secrets or {}).items():
        for path in (run_path(job, files[name]) / "secret", files[name].folder / "lasting-secret"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(secret.hex() + "\n")
    run_local(job, list(files.values()))
    return job, files


def weights(job, files, name: str = "city") -> dict[str, object]:
    return RunStore(run_path(job, files[name]), job).load_weights(TRAINED_MODEL)[0]


def same(left, right) -> bool:
    return all(bool((left[name] == right[name]).all()) for name in left)


SECRETS = {"notary": bytes(32), "city": bytes([1]) * 32, "rentals": bytes([2]) * 32}


def test_a_protected_job_repeats_bit_for_bit_with_the_same_secrets_and_not_with_others(tmp_path):
    changes = {"job": {"[network]": "[protection]\nfeatures = { noise = 0.5 }\n\n[network]"}}
    first = trained(tmp_path / "first", changes, SECRETS)
    again = trained(tmp_path / "again", changes, SECRETS)
    other = trained(tmp_path / "other", changes, {**SECRETS, "rentals": bytes([3]) * 32})
    assert same(weights(*first), weights(*again))
    assert same(weights(*first, "rentals"), weights(*again, "rentals"))
    assert not same(weights(*first), weights(*other))


def test_new_records_are_not_encoded_with_another_key_than_the_job_began_with(tmp_path):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    store, data = RunStore(run_path(job, files["rentals"]), job), PartyData.read(job, files["rentals"])
    store.folder.mkdir(parents=True, exist_ok=True)
    began = store.encoded(data, "rentals")
    assert (store.encode_new(data, "rentals").bits == began.bits).all()
    (tmp_path / "linkage.key").unlink()
    Key(bytes([1]) * 32).write(tmp_path / "linkage.key")
    assert (store.encoded(data, "rentals").bits == began.bits).all()  # a job that runs keeps its key
    with pytest.raises(FingerprintError) as caught:
        store.encode_new(data, "rentals")
    assert (caught.value.code, caught.value.secondary) == ("linkage-key-changed", "rentals")


LIST = 'metric = "hamming"'


def test_blur_wants_identifiers_of_the_schema(tmp_path):
    blur = 'blur = { latitude = "lat", longitude = "length", epsilon_per_km = 5 }'
    lay_out(tmp_path, {"job": {LIST: f"{LIST}\n{blur}"}})
    with pytest.raises(SettingError, match="'length'"):
        read_all(tmp_path)


FEATURES = Features(np.random.default_rng(0).normal(size=(400, 3)), np.zeros((400, 1), np.int64), (4,))


def test_rows_that_show_the_same_group_get_the_same_noise_which_no_mean_removes():
    equal = FEATURES.take(np.array([0, 0, 0, 1, 1, 1]))
    source = np.array([0, 0, 0, 1, 1, 1])
    noisy = add_feature_noise(equal, 3.0, bytes(32), table="a", source=source).numbers
    assert len(np.unique(noisy, axis=0)) == 2


def test_noise_on_features_is_the_same_again_and_another_for_another_secret_table_or_scale():
    first = add_feature_noise(FEATURES, 3.0, bytes(32), table="a")
    again = add_feature_noise(FEATURES, 3.0, bytes(32), table="a")
    assert np.array_equal(first.numbers, again.numbers)
    assert np.array_equal(first.codes, again.codes)
    others = [
        add_feature_noise(FEATURES, 3.0, bytes([1]) * 32, table="a"),
        add_feature_noise(FEATURES, 3.0, bytes(32), table="b"),
        add_feature_noise(FEATURES, 6.0, bytes(32), table="a"),
    ]
    laid = [(part.numbers - FEATURES.numbers).ravel() for part in (first, *others)]
    assert np.abs(np.corrcoef(laid)[0, 1:]).max() < 0.15


def test_features_are_noisy_in_training_and_repeat_with_the_same_secret(tmp_path):
    changes = {"job": {"[network]": "[protection]\nfeatures = { noise = 4.0 }\n\n[network]"}}
    plain = trained(tmp_path / "plain", {}, SECRETS)
    first = trained(tmp_path / "first", changes, SECRETS)
    again = trained(tmp_path / "again", changes, SECRETS)
    assert same(weights(*first, "rentals"), weights(*again, "rentals"))
    assert not same(weights(*first, "rentals"), weights(*plain, "rentals"))


def test_a_job_of_the_preset_runs_as_it_stands(tmp_path):
    preset = {"[network]": '[protection]\npreset = "protected"\n\n[network]'}
    job, files = trained(tmp_path / "preset", {"job": preset})
    assert job.secondaries["rentals"].blur is not None
    assert job.protection.sealed
    assert RunStore(run_path(job, files["city"]), job).load_weights(TRAINED_MODEL)[1]["metrics"]["test"]["rmse"] > 0


PROTECTED = """
[protection]
features = { noise = 1.0 }

[secondaries.rentals.blur]
latitude = "lat"
longitude = "lon"
epsilon_per_km = 10
"""


def test_another_job_moves_places_and_protects_features_as_the_first_did(tmp_path):
    lay_out(tmp_path, {"job": {"[network]": f"{PROTECTED}\n[network]"}})
    job, files = read_all(tmp_path)
    table = PartyData.read(job, files["rentals"])
    found = []
    for place, (run, party) in enumerate((("first", "party"), ("second", "party"), ("third", "stranger"))):
        for each in (run, party):
            (tmp_path / each).mkdir(exist_ok=True)
        changed = job.model_copy(update={"seed": place, "name": run})
        store = RunStore(tmp_path / run, changed, tmp_path / party)
        places = table.blurred_identifiers("rentals", store.secrets.lasting).to_numpy()
        found.append((places, store.protect_features(network_features(table), table).numbers))
    assert len({RunStore(tmp_path / run, job).secret for run in ("first", "second")}) == 2
    for first, second, stranger in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(first, stranger)
