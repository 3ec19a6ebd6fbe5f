"""The attacks on what crosses the cut layer in a short training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from audit_fixtures import FAST, read_party_files, tables_of
from fedsim.config.job import Protection, read_job
from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.pipeline.party_table import PartyData
from fedsim_audit import split_attacks
from fedsim_audit.audit_report import Verdict, run_attacks
from fedsim_audit.audit_run import prepare_audit


def with_protection(folder: Path, protection: Protection):
    return read_job(folder / "job.toml").model_copy(update={"protection": protection})


def by_attack(rows) -> dict[tuple[Adversary, str], Verdict]:
    return {(row.found.adversary, row.found.attack): row.verdict for row in rows}


def at_the_cut(folder: Path, protection: Protection) -> dict[tuple[Adversary, str], Verdict]:
    """What attacks on the training find; those on the linkage, which takes longer, do not depend on the protection."""
    job, rng = with_protection(folder, protection), np.random.default_rng(0)
    audited, _ = prepare_audit(job, tables_of(folder, job), "rentals", FAST)
    transcript = split_attacks.record_training(audited.inputs, audited.linkage, FAST.epochs)
    attacks = split_attacks.training_attacks(transcript, audited.inputs, audited.linkage, rng)
    return by_attack(run_attacks("rentals", attacks, FAST.memory)[0])


SEALED = Protection(gradients="none")


def test_under_sealed_labels_only_features_can_be_attacked_at_the_cut(folder):
    found = at_the_cut(folder, SEALED)
    assert {attack for adversary, attack in found if adversary is Adversary.SECONDARY} == {"label inference"}
    assert {attack for adversary, attack in found if adversary is Adversary.PRIMARY} == {
        "feature inversion",
        "joint inversion",
    }


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
    job, own = read_job(folder / "job.toml"), read_party_files(folder, "rentals")[0]
    table = PartyData.read(job, own)
    plain, noisy = (
        split_attacks.embedding_leaks(job.model_copy(update={"protection": Protection.model_validate(terms)}), table)
        for terms in ({"gradients": "none"}, {"gradients": "none", "features": {"noise": 4.0}})
    )
    assert plain.keys() == {"random", "features", "autoencoder"}
    assert all(noisy[name].score.value < plain[name].score.value / 2 for name in plain)
