"""The model of a job from arrays: rounded at the cut, with trees that see partners, and with placebo partners."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.cli import main
from fedsim.contribution.rungs import Rung, RungOutcome, SplitArrays, combine_embedded, run_training
from fedsim.protocol.cut_layer import wire_format
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import embed
from fedsim.training import NeighbourList, train_with
from fedsim.training.loop import start_local_secondaries, training_settings
from fedsim.types import AnyArray
from fedsim_lab import sealed_training, worker_pool
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.job_training import (
    NETWORK,
    OWN_TREES,
    SEEING_TREES,
    add_placebos,
    combine_job,
    compact_lists,
    placebo_names,
    round_int8,
    train_job_part,
)
from fedsim_lab.study_runner import load_sample

INT8 = wire_format("int8")


@pytest.fixture(scope="module")
def arrays() -> SplitArrays:
    return DatasetCases(load_sample("firms", Path(), 200)).one("random", 0)


def job_arrays(arrays: SplitArrays, **about: Any) -> SplitArrays:
    return replace(arrays, about={**arrays.about, **about})


@dataclass
class PackedSecondary:
    """A secondary whose tensors really pass through messages."""

    party: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.party, name)

    def activations(self, rows: torch.Tensor, step: int) -> torch.Tensor:
        return INT8.unpack(INT8.pack(self.party.activations(rows, step)))

    def descend(self, gradients: torch.Tensor, step: int) -> None:
        self.party.descend(INT8.unpack(INT8.pack(gradients)), step)

    def infer(self, rows: torch.Tensor) -> torch.Tensor:
        return INT8.unpack(INT8.pack(self.party.infer(rows)))


def test_tensors_are_rounded_as_messages_round_them() -> None:
    values = torch.randn(400, 32) * 10 ** torch.randn(400, 1)
    values[7] = 0
    assert torch.equal(round_int8(values), INT8.unpack(INT8.pack(values)))


def test_a_rounded_training_equals_one_whose_tensors_pass_through_messages(arrays: SplitArrays) -> None:
    rung = replace(NETWORK, epochs=2)
    config = rung.config(0, n_train=len(arrays.split.train))
    started = start_local_secondaries(rung.secondary_data(arrays), training_settings(config, arrays.split, None))
    packed = [NeighbourList(one.neighbours, tuple(map(PackedSecondary, one.holders))) for one in started]
    wanted = train_with(rung.primary_data(arrays), packed, arrays.split, config).predictions["test"]
    rounded = train_job_part(rung, job_arrays(arrays, wire="int8")).predictions
    np.testing.assert_array_equal(rounded, wanted)
    assert not np.array_equal(rounded, run_training(rung, arrays).predictions)


def preferred_trees(arrays: SplitArrays, own: RungOutcome, seeing: RungOutcome) -> AnyArray:
    """What the best of both trees and their mean predict for the test records."""
    labels = arrays.labels[arrays.split.validation]
    both = [(one.on_validation, one.predictions) for one in (own, seeing)]
    both.append(tuple((first + second) / 2 for first, second in zip(*both, strict=True)))
    return min(both, key=lambda one: np.square(one[0] - labels).mean())[1]


def test_a_job_averages_its_network_with_the_trees_that_validation_records_prefer(arrays: SplitArrays) -> None:
    network, own, seeing = (train_job_part(replace(r, epochs=2), arrays) for r in (NETWORK, OWN_TREES, SEEING_TREES))
    trees = [(one.predictions, one.on_validation) for one in (own, seeing)]
    found = combine_job(arrays, (network.predictions, network.on_validation), trees)
    best, weight = preferred_trees(arrays, own, seeing), found.figures["weight"]
    np.testing.assert_allclose(found.predictions, weight * network.predictions + (1 - weight) * best)


def test_trees_that_see_partners_equal_those_of_a_job_that_sends_an_embedding(arrays: SplitArrays) -> None:
    own, seeing = (train_job_part(rung, arrays) for rung in (OWN_TREES, SEEING_TREES))
    (linked,) = arrays.secondaries
    embedded = replace(linked, embedding=embed(linked.features, "random", 128, RandomSource(0, linked.name)))
    with_embedding, useless = replace(arrays, secondaries=(embedded,)), np.full(len(arrays.split.test), 1e6)
    on_validation = np.full(len(arrays.split.validation), 1e6)
    rung = Rung("stacked", "Stacked", "stacked", inputs="embedded")
    job = combine_embedded(rung, with_embedding, useless, on_validation)
    assert job.figures["weight"] == 0
    np.testing.assert_allclose(job.predictions, preferred_trees(arrays, own, seeing), rtol=1e-6)
    assert own.validation != seeing.validation


def test_trees_that_see_partners_are_identified_by_them(arrays: SplitArrays) -> None:
    (linked,) = arrays.secondaries
    other = replace(arrays, secondaries=(replace(linked, similarity=linked.similarity + 1),))
    assert OWN_TREES.result_key(arrays) == OWN_TREES.result_key(other)
    assert SEEING_TREES.result_key(arrays) != SEEING_TREES.result_key(other)


def test_placebos_join_with_the_links_of_the_partner_and_rows_of_their_own(arrays: SplitArrays) -> None:
    joined = add_placebos(job_arrays(arrays, added_placebos=2))
    rung = replace(NETWORK, partner="placebo", placebos=placebo_names(joined.about))
    real, *placebos = rung.secondary_data(joined)
    np.testing.assert_array_equal(real.features.numbers, arrays.secondaries[0].features.numbers)
    assert [one.name for one in placebos] == ["placebo-1", "placebo-2"]
    for one, other in ((placebos[0], real), (placebos[1], real), (placebos[0], placebos[1])):
        np.testing.assert_array_equal(one.partner, other.partner)
        assert not np.array_equal(one.features.numbers, other.features.numbers)


def test_compact_lists_link_every_record_as_before(arrays: SplitArrays) -> None:
    (linked,) = arrays.secondaries
    lists = np.repeat(linked.list_of, 2)
    loose = replace(
        linked,
        list_of=np.arange(len(lists)),
        **{name: getattr(linked, name)[lists] for name in ("partner", "similarity", "equal")},
    )
    tight = compact_lists(loose)
    assert len(tight.partner) <= len(linked.list_of)
    for name in ("partner", "similarity", "equal"):
        np.testing.assert_array_equal(getattr(tight, name)[tight.list_of], getattr(loose, name))


def test_the_error_of_a_default_job_is_measured_with_and_without_placebos_and_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    size = ["firms", "--records", "150", "--seeds", "1", "--epochs", "1", "--splits", "random", "--placebos", "1"]
    printed = []
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["lab", "bench", "job_errors", "--", *size, "--out", str(tmp_path)])
        printed.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("| firms")])
    assert printed[0] == printed[1]
    assert len(printed[0]) == 2


def test_workers_train_protected_jobs_and_sealed_labels_each_in_its_way(arrays, monkeypatch):
    calls = []
    monkeypatch.setattr(worker_pool, "train_job_part", lambda rung, case: calls.append("job"))
    monkeypatch.setattr(sealed_training, "train_sealed", lambda rung, case: calls.append("sealed"))
    worker_pool._train(NETWORK, job_arrays(arrays, protection='{"coordinator": "plain"}'))
    worker_pool._train(NETWORK, job_arrays(arrays, **sealed_training.SealedTerms().as_metadata()))
    assert calls == ["job", "sealed"]
