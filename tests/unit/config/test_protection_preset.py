"""The preset ``protected``: its settings, the job's hash, and what the owner sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config.disclosure import NOISE_REUSE_NOTE, privacy_guarantees, summarise_settings
from fedsim.config.job import (
    PRESET_EMBEDDING,
    PRESET_EPSILON_PER_KM,
    PRESET_EXCHANGE_OF,
    PRESET_FEATURE_NOISE,
    PRESET_SIGMA,
    PRESET_TAU,
    CutTerms,
    FeatureTerms,
    Job,
    read_job,
)
from fedsim.errors import SettingError

GOLDEN = Path(__file__).parents[2] / "golden"
PRESET = '\n[protection]\npreset = "protected"\n'


def job_of(folder: Path, more: str = "", **changes: str) -> Job:
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "job.toml"
    path.write_text(f"{text}{more}", encoding="utf-8")
    return read_job(path)


def without_noise(folder: Path, more: str) -> Job:
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace("tau = 0.01\n", "").replace("sigma = 0.4\n", "")
    path = folder / "job.toml"
    path.write_text(f"{text}{more}", encoding="utf-8")
    return read_job(path)


def test_the_preset_stands_for_concrete_settings_of_every_list_and_seals_labels(tmp_path):
    job = without_noise(tmp_path, PRESET)
    rentals, schools = job.secondaries["rentals"], job.secondaries["schools"]
    assert job.protection.sealed
    assert job.protection.features == FeatureTerms(noise=PRESET_FEATURE_NOISE)  # schools are not linked by place
    assert job.protection.blind
    assert (rentals.tau, rentals.sigma, rentals.blur.epsilon_per_km) == (None, PRESET_SIGMA, PRESET_EPSILON_PER_KM)
    assert (schools.tau, schools.sigma, schools.blur) == (None, PRESET_SIGMA, None)  # no place


@pytest.mark.parametrize("blind", [True, False])
def test_the_preset_bounds_tau_only_where_the_coordinator_sees_the_distances(tmp_path, blind):
    job = without_noise(tmp_path, PRESET + f'coordinator = "{"blind" if blind else "plain"}"\n')
    rentals, schools = job.secondaries["rentals"], job.secondaries["schools"]
    assert (rentals.tau, rentals.sigma) == ((None, PRESET_SIGMA) if blind else (PRESET_TAU, None))
    assert (schools.tau, schools.sigma) == (None, PRESET_SIGMA)  # compared by dice


def test_tau_under_a_blind_coordinator_is_refused(tmp_path):
    with pytest.raises(SettingError) as caught:
        job_of(tmp_path, '\n[protection]\ncoordinator = "blind"\n')
    assert (caught.value.code, caught.value.setting) == ("not-blind", "secondaries.rentals.tau")
    assert job_of(tmp_path, '\n[protection]\ncoordinator = "blind"\n', **{"tau = 0.01": "sigma = 0.4"}).protection.blind


def only_places(folder: Path, more: str) -> Job:
    """Return a job whose only secondary is linked by place."""
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace("tau = 0.01\n", "")
    start, end = text.index("[secondaries.schools]"), text.index("[secondaries.rentals]")
    path = folder / "job.toml"
    path.write_text(f"{text[:start]}{text[end:]}{more}", encoding="utf-8")
    return read_job(path)


def test_where_all_lists_are_places_the_preset_lets_neighbours_exchange_features(tmp_path):
    job = only_places(tmp_path, PRESET)
    assert job.protection.features == FeatureTerms(exchange_of=PRESET_EXCHANGE_OF)
    assert job.protection.blind
    assert job.protection.embedding == PRESET_EMBEDDING
    assert any("neighbours" in sentence for sentence in privacy_guarantees(job))
    assert Job.from_dict(job.to_dict()).hash == job.hash


@pytest.mark.parametrize("setting", ["relative = true", "min_degree = 2", "dummies = 0.1", "tau = 0.01"])
def test_the_preset_refuses_terms_by_which_a_blind_coordinator_cannot_link(tmp_path, setting):
    change = {"tau = 0.01\n": "", "sigma = 0.4\n": f"{setting}\n"}
    with pytest.raises(SettingError) as caught:
        job_of(tmp_path, PRESET, **change)
    name = setting.partition(" ")[0]
    assert (caught.value.code, caught.value.setting) == ("not-blind", f"secondaries.schools.{name}")


def test_a_plain_coordinator_under_the_preset_is_asked_for_and_shown(tmp_path):
    change = {"k = 10\n": "k = 10\nrelative = true\n"}
    job = job_of(tmp_path, PRESET + 'coordinator = "plain"\n', **change)
    assert not job.protection.blind
    assert dict(summarise_settings(job))["coordinator"].startswith("plain")
    assert dict(summarise_settings(without_noise(tmp_path, PRESET)))["coordinator"].startswith("blind")


@pytest.mark.parametrize(
    ("features", "code"),
    [
        ("average_of = 5", "neighbours-need-places"),
        ("exchange_of = 5", "neighbours-need-places"),
        ("average_of = 5, exchange_of = 5", "average-and-exchange"),
    ],
)
def test_neighbours_need_places_and_either_average_or_exchange(tmp_path, features, code):
    with pytest.raises(SettingError) as caught:
        job_of(tmp_path, f"\n[protection]\nfeatures = {{ {features} }}\n")
    assert {fault.code for fault in caught.value.faults} == {code}


def test_features_without_any_mechanism_are_refused(tmp_path):
    with pytest.raises(SettingError) as caught:
        job_of(tmp_path, "\n[protection]\nfeatures = {}\n")
    assert {fault.code for fault in caught.value.faults} == {"no-effect"}


def test_the_hash_is_that_of_the_settings_written_out_by_hand(tmp_path):
    job = without_noise(tmp_path, PRESET)
    again = Job.from_dict(job.to_dict())
    assert again.hash == job.hash != job_of(tmp_path).hash
    assert "preset" not in again.to_dict()["protection"]


def test_explicit_settings_take_precedence(tmp_path):
    own = 'gradients = { clip = 0.1, noise = 2.0 }\ncoordinator = "plain"\n'
    job = job_of(tmp_path, PRESET + own)
    assert not job.protection.sealed
    assert job.protection.gradients == CutTerms(clip=0.1, noise=2.0)
    assert job.protection.features == FeatureTerms(noise=PRESET_FEATURE_NOISE)
    assert job.secondaries["rentals"].tau == 0.01
    assert job.secondaries["schools"].sigma == 0.4


def test_the_owner_sees_the_settings_of_the_preset_and_its_guarantees(tmp_path):
    job = without_noise(tmp_path, PRESET)
    shown = dict(summarise_settings(job))
    assert shown["preset"].startswith("protected")
    assert f"{PRESET_FEATURE_NOISE:g}" in shown["features"]
    assert f"epsilon {PRESET_EPSILON_PER_KM:g} per km" in shown["rentals"]
    subjects = {sentence.partition(":")[0] for sentence in privacy_guarantees(job)}
    assert {"rentals", "schools", "features", "labels"} <= subjects


def test_a_job_without_noise_guarantees_nothing(tmp_path):
    [sentence] = privacy_guarantees(without_noise(tmp_path, ""))
    assert sentence.startswith("none")


@pytest.mark.parametrize("fold", ["", ', { kind = "xor-fold" }'])
def test_the_guarantee_for_flipped_bits_counts_the_bits_at_that_step(tmp_path, fold):
    flips = '{ kind = "balance" }, { kind = "bit-flip", epsilon = 3.0 }' + fold
    job = job_of(tmp_path, **{'{ kind = "balance" }': flips})
    [sentence] = [sentence for sentence in privacy_guarantees(job) if "e^12288" in sentence]
    assert "e^3" in sentence
    assert "4,096 bits" in sentence


def test_the_note_on_reused_noise_is_shown_only_where_noise_is_drawn_once(tmp_path):
    assert NOISE_REUSE_NOTE in privacy_guarantees(without_noise(tmp_path, PRESET))
    cut = "\n[protection]\ngradients = { clip = 1.0, noise = 2.0 }\n"
    assert NOISE_REUSE_NOTE not in privacy_guarantees(without_noise(tmp_path, cut))


def test_the_guarantee_for_a_label_counts_all_rows_that_it_affects(tmp_path):
    cut = "\n[protection]\ngradients = { clip = 1.0, noise = 2.0 }\n"
    [sentence] = [each for each in privacy_guarantees(without_noise(tmp_path, cut)) if "50 rows of rentals" in each]
    assert "7.07 * sqrt(T)-GDP" in sentence


def test_hidden_rows_have_a_guarantee(tmp_path):
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace("k = 50\n", "k = 50\nhide_rows = true\n")
    path = tmp_path / "job.toml"
    path.write_text(f"{text}\n[protection]\nactivations = {{ clip = 1.0, noise = 2.0 }}\n", encoding="utf-8")
    assert any("same row" in sentence for sentence in privacy_guarantees(read_job(path)))


def test_hidden_rows_and_a_blind_coordinator_are_refused_before_noise_is_asked_for(tmp_path):
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace("k = 50\n", "k = 50\nhide_rows = true\n")
    path = tmp_path / "job.toml"
    path.write_text(f'{text}\n[protection]\ncoordinator = "blind"\n', encoding="utf-8")
    with pytest.raises(SettingError) as caught:
        read_job(path)
    assert (caught.value.code, caught.value.setting) == ("not-blind", "secondaries.rentals.hide_rows")


def test_an_unknown_preset_is_refused(tmp_path):
    with pytest.raises(SettingError, match="protected") as caught:
        job_of(tmp_path, PRESET.replace("protected", "protect"))
    assert caught.value.code == "unknown-choice"
