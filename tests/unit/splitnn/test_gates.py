"""Scores, predictions and losses of every task."""

from __future__ import annotations

import pytest
import torch

from fedsim.splitnn.gates import BinaryClassification, BoundedRegression, MulticlassClassification, Regression

TASKS = [Regression(), BoundedRegression(), BinaryClassification(), MulticlassClassification(4)]


def scores_of(task, opinions=5, scale=3.0):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(6, opinions, task.outputs, generator=generator, dtype=torch.float64) * scale


def labels_of(task):
    return torch.arange(6) % 4 if isinstance(task, MulticlassClassification) else (torch.arange(6) % 2).double()


@pytest.mark.parametrize("task", TASKS)
def test_the_average_score_predicts_the_mean_prediction(task):
    scores = scores_of(task)
    torch.testing.assert_close(task.predict(task.average(scores)), task.predict(scores))
    each = torch.stack([task.predict(scores[:, [place]]) for place in range(5)])
    torch.testing.assert_close(task.predict(scores), each.mean(dim=0))


@pytest.mark.parametrize("task", TASKS)
def test_losses_and_averages_stay_finite_however_sure_the_network_is(task):
    scores = scores_of(task, scale=1e4).requires_grad_()
    loss = task.loss(task.average(scores), labels_of(task))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_of_opinions_is_the_mean_of_their_losses(task):
    scores, labels = scores_of(task), labels_of(task)
    each = [task.loss(scores[:, [place]], labels) for place in range(5)]
    torch.testing.assert_close(task.loss(scores, labels), torch.stack(each).mean())


@pytest.mark.parametrize("task", TASKS)
def test_squashing_and_scoring_undo_each_other(task):
    scores = scores_of(task)
    torch.testing.assert_close(task.score(task.squash(scores)), scores)


def test_probabilities_of_classes_sum_to_one():
    task = MulticlassClassification(4)
    torch.testing.assert_close(task.predict(scores_of(task)).sum(dim=1), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("task", TASKS)
def test_a_record_of_weight_two_counts_as_two_in_the_loss(task):
    scores, labels, times = scores_of(task), labels_of(task), torch.tensor([1, 2, 3, 1, 1, 2])
    weighted = task.loss(scores, labels, times / times.double().mean())
    torch.testing.assert_close(weighted, task.loss(scores.repeat_interleave(times, 0), labels.repeat_interleave(times)))
