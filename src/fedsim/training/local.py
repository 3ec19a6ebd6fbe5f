"""Secondaries in this process, by the lists they answer for."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.errors import InputError
from fedsim.splitnn import below
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.training.data import HeldList, SecondaryData, as_features
from fedsim.training.prepare import Setting


def held_here(secondaries: Sequence[SecondaryData], setting: Setting) -> tuple[HeldList, ...]:
    """One list per secondary that brings one, held by it and by those aligned with it."""
    leaders = [data for data in secondaries if not data.aligned_with]
    lists = {leader.name: _list_of(leader) for leader in leaders}
    _check_aligned(secondaries)
    started = [(data.aligned_with or data.name, start_secondary(data, setting)) for data in secondaries]
    return tuple(
        HeldList(neighbours, tuple(party for leader, party in started if leader == name))
        for name, neighbours in lists.items()
    )


def start_secondary(data: SecondaryData, setting: Setting) -> LocalSecondary:
    """A secondary at step 0 of this job."""
    return below.start_secondary(
        data.name,
        as_features(data.features),
        setting.config.below,
        total_steps=setting.total_steps,
        device=setting.device,
        folder=setting.folder / data.name if setting.folder else None,
    )


def _list_of(leader: SecondaryData) -> Neighbours:
    if leader.neighbours is None:
        raise InputError(f"{leader.name} has no list of partners; give partner and similarity, or aligned_with")
    return leader.neighbours


def _check_aligned(secondaries: Sequence[SecondaryData]) -> None:
    for place, data in enumerate(secondaries):
        leaders = [other.name for other in secondaries[:place] if not other.aligned_with]
        if data.aligned_with and data.aligned_with not in leaders:
            raise InputError(
                f"{data.name} is aligned with '{data.aligned_with}', which is no earlier secondary with a list"
            )
