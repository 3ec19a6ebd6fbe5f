"""The audit of a small job: what it finds, what it claims, and that a build without its mechanisms is caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.config.job import Blur, FeatureTerms, Protection, SecondaryTerms, read_job
from fedsim.config.party_file import read_party_file
from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim.errors import InputError, SettingError
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.pipeline.party_table import PartyData
from fedsim.privacy.mechanisms import NoisyFeatures, PlanarLaplace
from fedsim.types import Links
from fedsim_audit import linkage_attacks, split_attacks
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES
from fedsim_audit.audit_report import AuditReport, AuditSettings, PlannedAttack, Verdict, run_attacks
from fedsim_audit.audit_run import audit_job, prepare_audit, read_audit_tables
from job_fixtures import lay_out

FAST = AuditSettings(targets=50, tries=0, epochs=1, most_records=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("audit")
    lay_out(place)
    return place


def files(folder: Path, *names: str):
    return [read_party_file(folder / f"{name}.toml") for name in names]


def linked(folder: Path, seed: int = 0, **changes):
    job, settings = read_job(folder / "job.toml"), replace(FAST, seed=seed)
    tables = read_audit_tables(job, files(folder, "city", "rentals"), 300, np.random.default_rng(seed))
    return prepare_audit(job, tables, "rentals", settings)[0].setup.linkage(**changes)


def verdicts(linkage, seed: int = 0) -> dict[str, Verdict]:
    attempts = linkage_attacks.primary_attacks(linkage, FAST, np.random.default_rng(seed))
    rows, _ = run_attacks("rentals", attempts, FAST.memory)
    return {row.found.attack: row.verdict for row in rows}


@pytest.fixture(scope="module")
def report(folder: Path) -> AuditReport:
    return audit_job(read_job(folder / "job.toml"), files(folder, "city", "rentals"), FAST)


def test_the_first_line_says_that_tau_holds_and_places_leak(report):
    assert report.headline.startswith("tau=0.05")
    assert "all links together locate" in report.headline
    assert {row.found.adversary for row in report.rows} == set(Adversary)
    assert not report.broken
    assert any("collusion" in skipped.what for skipped in report.skipped)


@pytest.fixture(scope="module")
def generous(folder: Path) -> AuditReport:
    return audit_job(read_job(folder / "job.toml"), files(folder, "city", "rentals"), replace(FAST, limit=0.999))


def test_a_generous_limit_does_not_hide_that_tau_is_not_enough(generous):
    assert "all links together locate" in generous.headline


def test_an_audit_repeats_by_its_seed_whatever_its_limit(report, generous):
    assert [row.found for row in generous.rows] == [row.found for row in report.rows]


@pytest.mark.parametrize("seed", range(3))
def test_a_build_without_noise_is_caught(folder, monkeypatch, seed):
    honest = linkage_attacks.link_encoded_tables

    def broken(*arguments, **options):
        linking = arguments[3]
        quiet = LinkageConfig(linking.metric, linking.k)
        linked_as_promised, _ = honest(*arguments, **options)
        return linked_as_promised, honest(*arguments[:3], quiet, *arguments[4:], **options)[1]

    assert Verdict.BROKEN not in verdicts(linked(folder, seed), seed).values()
    monkeypatch.setattr(linkage_attacks, "link_encoded_tables", broken)
    assert verdicts(linked(folder, seed), seed)["greedy, distances"] is Verdict.BROKEN


@pytest.mark.parametrize("seed", range(3))
def test_a_build_that_does_not_move_places_as_the_job_says_is_caught(folder, monkeypatch, seed):
    blur = Blur(latitude="lat", longitude="lon", epsilon_per_km=5.0)
    assert Verdict.BROKEN not in verdicts(linked(folder, seed, blur=blur), seed).values()
    honest = PlanarLaplace.displace
    monkeypatch.setattr(
        PlanarLaplace, "displace", lambda self, places, chance: (places + honest(self, places, chance)) / 2
    )
    found = verdicts(linked(folder, seed, blur=blur), seed)
    assert found["missing noise on places"] is Verdict.BROKEN


@pytest.mark.parametrize("seed", range(3))
def test_a_build_that_names_raw_rows_is_caught(folder, monkeypatch, seed):
    honest = linkage_attacks.link_encoded_tables

    def broken(*arguments, **options):
        made, delivery = honest(*arguments, **options)
        raw = made.order[delivery.partner]
        return replace(made, order=np.arange(len(made.order), dtype=np.int32)), Links(raw, delivery.overall)

    monkeypatch.setattr(linkage_attacks, "link_encoded_tables", broken)
    assert verdicts(linked(folder, seed), seed)["row order"] is Verdict.BROKEN


def with_protection(folder: Path, protection: Protection):
    return read_job(folder / "job.toml").model_copy(update={"protection": protection})


def tables_of(folder: Path, job):
    return read_audit_tables(job, files(folder, "city", "rentals"), 300, np.random.default_rng(0))


def by_attack(rows) -> dict[tuple[Adversary, str], Verdict]:
    return {(row.found.adversary, row.found.attack): row.verdict for row in rows}


def at_the_cut(folder: Path, protection: Protection) -> dict[tuple[Adversary, str], Verdict]:
    """What attacks on the training find; those on the linkage, which takes longer, do not depend on the protection."""
    job, rng = with_protection(folder, protection), np.random.default_rng(0)
    audited, _ = prepare_audit(job, read_audit_tables(job, files(folder, "city", "rentals"), 300, rng), "rentals", FAST)
    transcript = split_attacks.record_training(audited.inputs, audited.linkage, FAST.epochs)
    attacks = split_attacks.training_attacks(transcript, audited.inputs, audited.linkage, rng)
    return by_attack(run_attacks("rentals", attacks, FAST.memory)[0])


NOISY = Protection(features=FeatureTerms(noise=4.0))
OF_FEATURES = (Adversary.PRIMARY, "missing noise on features")


def test_the_noise_that_a_job_promises_on_features_is_there(folder):
    found = by_attack(audit_job(with_protection(folder, NOISY), files(folder, "city", "rentals"), FAST).rows)
    assert found[OF_FEATURES] is Verdict.KEPT
    assert Verdict.BROKEN not in found.values()


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_a_build_that_lays_less_noise_on_features_than_the_job_says_is_caught(folder, monkeypatch, share):
    honest = NoisyFeatures.add_noise
    monkeypatch.setattr(NoisyFeatures, "add_noise", lambda self, values, drawn: honest(self, values, share * drawn))
    assert at_the_cut(folder, NOISY)[OF_FEATURES] is Verdict.BROKEN


def test_the_coordinator_is_attacked_by_the_filters_of_both_parties(folder):
    job = read_job(folder / "job.toml")
    audited, _ = prepare_audit(job, tables_of(folder, job), "rentals", FAST)
    attacks = linkage_attacks.coordinator_attacks(audited.linkage, FAST, np.random.default_rng(0))
    rows, _ = run_attacks("rentals", attacks, FAST.memory)
    assert {row.victim for row in rows} == set(Victim)
    assert len({row.found.attack for row in rows}) == len(rows)


SEALED = Protection(gradients="none")


def test_under_sealed_labels_only_features_can_be_attacked_at_the_cut(folder):
    found = at_the_cut(folder, SEALED)
    assert {attack for adversary, attack in found if adversary is Adversary.SECONDARY} == {"label inference"}
    assert (Adversary.PRIMARY, "feature inversion") in found


def test_label_inference_under_sealed_labels_is_guessing(folder):
    job = with_protection(folder, SEALED)
    audited, _ = prepare_audit(job, tables_of(folder, job), "rentals", FAST)
    transcript, rng = split_attacks.record_training(audited.inputs, audited.linkage, 1), np.random.default_rng(0)
    attacks = list(split_attacks.training_attacks(transcript, audited.inputs, audited.linkage, rng))
    [attack] = [attack for attack in attacks if attack.who is Adversary.SECONDARY]
    found = attack.run()
    assert (found.kind, found.score.value, found.score.high, found.advantage) == (AttackKind.GRADIENTS, 0.5, 0.5, 0.0)
    assert attack.guarantee.verdict(found) is Verdict.KEPT
    assert 0 < transcript.labels.mean() < 1


def test_a_build_that_sends_gradients_under_sealed_labels_is_caught(folder):
    job = with_protection(folder, SEALED)
    audited, _ = prepare_audit(job, tables_of(folder, job), "rentals", FAST)
    transcript, rng = split_attacks.record_training(audited.inputs, audited.linkage, 1), np.random.default_rng(0)
    leaking = replace(transcript, gradients=transcript.gradients + transcript.labels[:, None])
    attacks = split_attacks.training_attacks(leaking, audited.inputs, audited.linkage, rng)
    found = by_attack(run_attacks("rentals", attacks, FAST.memory)[0])
    assert found[Adversary.SECONDARY, "label inference"] is Verdict.BROKEN


def test_an_owner_learns_what_every_embedding_gives_away_and_that_noise_helps(folder):
    job, own = read_job(folder / "job.toml"), files(folder, "rentals")[0]
    table = PartyData.read(job, own)
    plain, noisy = (
        split_attacks.embedding_leaks(job.model_copy(update={"protection": Protection.model_validate(terms)}), table)
        for terms in ({"gradients": "none"}, {"gradients": "none", "features": {"noise": 4.0}})
    )
    assert plain.keys() == {"random", "features", "autoencoder"}
    assert all(noisy[name].score.value < plain[name].score.value / 2 for name in plain)


def test_a_job_without_noise_on_features_promises_none(folder):
    assert OF_FEATURES not in at_the_cut(folder, Protection())


@pytest.mark.parametrize("epsilon", [20.0, 5.0, 1.0])
def test_blurring_is_promised_and_kept(folder, epsilon):
    linkage = linked(folder, blur=Blur(latitude="lat", longitude="lon", epsilon_per_km=epsilon))
    found = verdicts(linkage)
    assert found["link graph"] is found["grid likelihood"] is found["likelihood"] is Verdict.KEPT


@pytest.mark.parametrize("seed", range(3))
def test_a_build_that_does_not_blur_is_caught(folder, monkeypatch, seed):
    monkeypatch.setattr(linkage_attacks.party_table, "blur_identifiers", lambda frame, terms, secret, table: frame)
    found = verdicts(linked(folder, seed, blur=Blur(latitude="lat", longitude="lon", epsilon_per_km=0.5)), seed)
    assert Verdict.BROKEN in [found["link graph made consistent"], found["grid likelihood"]]


def test_blurring_moves_guesses_away(folder):
    def error(linkage):
        rows, _ = run_attacks("", linkage_attacks.place_attacks(linkage, FAST, np.random.default_rng(0)), FAST.memory)
        return min(row.found.figures[MEDIAN_ERROR_METRES] for row in rows)

    blurred = linked(folder, tau=None, blur=Blur(latitude="lat", longitude="lon", epsilon_per_km=0.5))
    assert error(blurred) > 2 * error(linked(folder, tau=None))


def trips(similarities: str, sigma: float):
    """Trips with a start and an end, linked by both."""
    rng, ends = np.random.default_rng(0), ("start", "end")
    tables = [
        pl.DataFrame(
            {f"{end}_{axis}": low + 0.1 * rng.random(n) for end in ends for axis, low in (("lat", 50), ("lon", 8))}
        )
        for n in (250, 60)
    ]
    fields = [{"column": f"{end}_lat", "longitude": f"{end}_lon", "encoding": {"kind": "place"}} for end in ends]
    terms = {"k": 20, "sigma": sigma, "similarities": similarities, "schema": {"version": 1, "fields": fields}}
    setup = linkage_attacks.AttackSetup(
        "taxi", SecondaryTerms.model_validate(terms), *tables, np.ones(250, dtype=np.bool_), 0
    )
    return setup.linkage()


def test_similarities_of_every_field_locate_each_end_of_a_trip():
    def errors(linkage):
        attacks = linkage_attacks.place_attacks(linkage, FAST, np.random.default_rng(0))
        found = [planned.run() for planned in attacks if planned.what.startswith("multilateration")]
        return [one.figures[MEDIAN_ERROR_METRES] for one in found]

    fields, record = errors(trips("fields", 0.05)), errors(trips("record", 0.05))
    assert len(fields) == len(record) == 2
    assert max(fields) < 0.5 * min(record)


def test_one_party_alone_is_split_in_halves_and_the_report_says_so(folder):
    job = read_job(folder / "job.toml")
    report = audit_job(job, files(folder, "rentals"), FAST)
    assert any("a random half of it" in note for note in report.notes)
    assert not [row for row in report.rows if row.found.adversary is Adversary.SECONDARY]
    assert "labels" in [skipped.what for skipped in report.skipped]


def test_an_attack_beyond_the_memory_is_left_out_and_the_others_run(folder):
    report = audit_job(read_job(folder / "job.toml"), files(folder, "city", "rentals"), replace(FAST, memory=1000))
    left = [skipped for skipped in report.skipped if "GiB of memory" in skipped.why]
    assert any("order" in skipped.what for skipped in left)
    assert report.rows


def test_an_attack_that_cannot_run_leaves_its_reason():
    def fails():
        raise InputError("no record has a partner")

    rows, skipped = run_attacks(
        "a", [PlannedAttack(AttackKind.GREEDY, Adversary.PRIMARY, Victim.SECONDARY, "greedy", "all", fails)], memory=1
    )
    assert not rows
    assert skipped[0].why == "no record has a partner"


def test_advice_names_a_setting_that_was_measured(folder):
    settings = replace(FAST, tries=2, limit=0.3, epochs=2)
    report = audit_job(read_job(folder / "job.toml"), files(folder, "city", "rentals"), settings)
    reached = [advice for advice in report.advice if advice.reached]
    assert 'protection.gradients = "none"' in {one.setting for one in report.advice}
    assert all(advice.leak <= 0.3 for advice in reached)
    labels = [advice for advice in report.advice if advice.setting == 'protection.gradients = "none"']
    assert all(advice.reached and advice.leak == 0 for advice in labels)


@pytest.mark.parametrize("change", [{"limit": 1.0}, {"metres": 0.0}, {"most_records": 3}])
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(SettingError):
        AuditSettings(**change)


def test_a_coordinator_alone_has_nothing_to_audit(folder):
    with pytest.raises(SettingError) as caught:
        audit_job(read_job(folder / "job.toml"), files(folder, "notary"), FAST)
    assert caught.value.code == "no-table"
