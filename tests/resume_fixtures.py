"""Runs that are killed and started again, and what must not differ then."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedsim.training import Hook, train
from training_fixtures import SPLIT, small_primary, small_secondaries


class KilledError(Exception):
    pass


class KillAt(Hook):
    """Raises after this many steps of the run it watches, counted over restarts."""

    def __init__(self, *steps):
        self.steps, self.seen = set(steps), 0

    def stepped(self, step):
        self.seen += 1
        if self.seen in self.steps:
            raise KilledError


def run(config, parties=3, **options):
    return train(small_primary(), small_secondaries(parties), SPLIT, config, **options)


def survive(config, folder, hook, parties=3):
    """Start again after every kill."""
    while True:
        try:
            return run(config, parties, folder=folder, hooks=[hook])
        except KilledError:
            continue


def same_bits(left, right):
    return left.parts.keys() == right.parts.keys() and all(
        torch.equal(tensor, right.parts[party][name])
        for party, weights in left.parts.items()
        for name, tensor in weights.items()
    )


def without_time(history):
    return [replace(epoch, seconds=0.0) for epoch in history]


def last_tensors(folder):
    """The newest tensors of every party, as they lie on the disk: weights, best weights, optimiser, loss."""
    newest = {path.parent.parent.name: path for path in sorted(folder.glob("*/step-*/tensors.safetensors"))}
    return {party: path.read_bytes() for party, path in newest.items()}
