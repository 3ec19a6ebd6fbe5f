"""Train the model of a job from arrays, as the job itself trains it; requires torch, NumPy and scikit-learn.

The metadata of the arrays describe the job further: ``wire`` is the number format at the cut, and ``added_placebos``
the number of placebo partners in addition to the real one; ``one_to_one`` says that the secondaries are linked one to
one among themselves.

Letters: U rows, C width of the cut layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.contribution.rungs import (
    BOOSTED_TREES,
    LinkedSecondary,
    Rung,
    RungOutcome,
    SplitArrays,
    combine_outcomes,
    run_training,
    train_trees,
)
from fedsim.registry import PRESETS
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import embed
from fedsim.training import Hook, SecondaryData, train, train_with
from fedsim.training.boosted_trees import PartnerPool, TreeColumns, TreeInputs, measure, tree_columns
from fedsim.training.data import TaskType, as_features, selection_key
from fedsim.training.loop import start_local_secondaries, training_settings
from fedsim.types import AnyArray

# The three trainings of a job with the method ``stacked``; the validation records choose one of both trees, or their
# mean.
NETWORK = Rung("network", "Network", "fedsim")
OWN_TREES = Rung("own-trees", "Boosted trees, own columns", BOOSTED_TREES, inputs="identifiers")
SEEING_TREES = Rung("seeing-trees", "Boosted trees, partners", BOOSTED_TREES, inputs="embedded")
MOST_INT8 = 127
EMBEDDING = "random"  # as ``fedsim init`` proposes
ONE_TO_ONE = "one_to_one"


def train_study_rung(rung: Rung, arrays: SplitArrays, hooks: Sequence[Hook] = ()) -> RungOutcome:
    """Train one rung in this process; secondaries that are linked one to one share the lists of the first."""
    if not arrays.about.get(ONE_TO_ONE) or rung.needs_no_partner:
        return run_training(rung, arrays, hooks)
    leader, *others = rung.secondary_data(arrays)
    aligned = [SecondaryData(party.features, name=party.name, aligned_with=leader.name) for party in others]
    config = rung.config(arrays.about["seed"], n_train=len(arrays.split.train))
    return RungOutcome.of(train(rung.primary_data(arrays), [leader, *aligned], arrays.split, config, hooks=hooks))


def compact_lists(linked: LinkedSecondary) -> LinkedSecondary:
    """Return the same secondary with every distinct list of partners stored once."""
    n_lists, similarity = len(linked.partner), np.ascontiguousarray(linked.similarity)
    parts = [linked.partner.astype(np.int32), similarity.reshape(n_lists, -1).view(np.int32), linked.equal[:, None]]
    _, first, place = np.unique(np.hstack(parts), axis=0, return_index=True, return_inverse=True)
    return replace(
        linked,
        list_of=place.reshape(-1)[linked.list_of].astype(np.int32),
        partner=linked.partner[first].astype(np.int32),
        similarity=similarity[first],
        equal=linked.equal[first].astype(np.int32),
    )


def add_placebos(arrays: SplitArrays) -> SplitArrays:
    """Return the arrays with the additional partners that their metadata require, linked like the first secondary.

    The placebos of a rung shuffle their rows.
    """
    names = placebo_names(arrays.about)
    further = tuple(replace(arrays.secondaries[0], name=name) for name in names)
    return replace(arrays, secondaries=(*arrays.secondaries, *further)) if names else arrays


def placebo_names(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the added placebo partners."""
    return tuple(f"placebo-{place}" for place in range(1, about.get("added_placebos", 0) + 1))


def train_job_part(rung: Rung, arrays: SplitArrays) -> RungOutcome:
    """Train a rung: networks with the job's rounding at the cut, trees with an embedding."""
    if rung.method == BOOSTED_TREES and rung.inputs == "embedded":
        return _train_seeing_trees(rung, arrays)
    if arrays.about.get("wire") != "int8" or not rung.trains_network or rung.needs_no_partner:
        return run_training(rung, arrays)
    config = rung.config(arrays.about["seed"], n_train=len(arrays.split.train))
    lists = start_local_secondaries(rung.secondary_data(arrays), training_settings(config, arrays.split, None))
    for holder in (holder for entry in lists for holder in entry.holders):
        holder.model.network.register_forward_hook(_round_cut)  # type: ignore[attr-defined]
    return RungOutcome.of(train_with(rung.primary_data(arrays), lists, arrays.split, config))


def combine_job(
    arrays: SplitArrays, network: tuple[AnyArray, AnyArray], trees: Sequence[tuple[AnyArray, AnyArray]]
) -> RungOutcome:
    """Return a job's predictions: its network averaged with the trees, or their mean, that do best on validation.

    Predictions are numbers, for the test and the validation records.
    """
    labels = arrays.labels[arrays.split.validation]
    options = [*trees, tuple(np.mean(both, axis=0) for both in zip(*trees, strict=True))]
    best = max(options, key=lambda option: selection_key(measure(option[1], labels, TaskType.NUMBERS)))
    return combine_outcomes(arrays, (network[0], best[0]), (network[1], best[1]))


def _train_seeing_trees(rung: Rung, arrays: SplitArrays) -> RungOutcome:
    """Fit trees that see the primary's columns and the embedded partners."""
    width, seed = PRESETS[rung.preset].local.cut, arrays.about["seed"]
    embedded = tuple(
        replace(linked, embedding=embed(linked.features, EMBEDDING, width, RandomSource(seed, linked.name)))
        for linked in arrays.secondaries
    )
    data = rung.primary_data(arrays)
    lists = rung.embedded_partners(replace(arrays, secondaries=embedded))
    inputs = TreeInputs(TreeColumns.none(len(data.labels)).names, lists)
    columns = tree_columns([PartnerPool.fit(one.rows) for one in lists], inputs)
    return train_trees(rung, replace(data, features=columns.beside(as_features(data.features))), arrays)


# Rounding at the cut, as the wire format ``int8`` of a job rounds


def round_int8(values: Tensor) -> Tensor:
    """Return the values as a message of a job would carry them, (U, C) -> (U, C)."""
    scale = (values.abs().amax(dim=1, keepdim=True) / MOST_INT8).bfloat16().float()
    return (values / scale.clamp_min(torch.finfo(torch.float32).tiny)).round() * scale


class _RoundedCut(torch.autograd.Function):
    """Rounds activations on their way to the primary, and gradients on their way back."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor) -> Tensor:
        return round_int8(activations)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        return round_int8(gradients)


def _round_cut(network: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
    rounded: Tensor = _RoundedCut.apply(outputs)  # type: ignore[no-untyped-call]
    return rounded
