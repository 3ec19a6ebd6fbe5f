"""Attacks on one's own linkage and model, each by one adversary with what that adversary really sees."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.attack.cut_layer_attacks import (
        Eavesdropper,
        completion_attack,
        direction_attack,
        inversion_attack,
        norm_attack,
    )
    from fedsim.attack.filter_attacks import NameList, frequency_attack, graph_attack, order_attack
    from fedsim.attack.finding import Adversary, AttackFinding, IntervalEstimate
    from fedsim.attack.location_attacks import (
        TrueLocations,
        consistency_attack,
        link_graph_attack,
        multilateration_attack,
    )
    from fedsim.attack.primary_view import Codebook, PrimaryView, RankPlaceEncoder
    from fedsim.attack.similarity_attacks import distance_attack, greedy_attack, grid_attack, likelihood_attack

_HOMES = {
    "Adversary": "finding",
    "AttackFinding": "finding",
    "Codebook": "primary_view",
    "Eavesdropper": "cut_layer_attacks",
    "IntervalEstimate": "finding",
    "NameList": "filter_attacks",
    "PrimaryView": "primary_view",
    "RankPlaceEncoder": "primary_view",
    "TrueLocations": "location_attacks",
    "completion_attack": "cut_layer_attacks",
    "consistency_attack": "location_attacks",
    "direction_attack": "cut_layer_attacks",
    "distance_attack": "similarity_attacks",
    "frequency_attack": "filter_attacks",
    "graph_attack": "filter_attacks",
    "greedy_attack": "similarity_attacks",
    "grid_attack": "similarity_attacks",
    "inversion_attack": "cut_layer_attacks",
    "likelihood_attack": "similarity_attacks",
    "link_graph_attack": "location_attacks",
    "multilateration_attack": "location_attacks",
    "norm_attack": "cut_layer_attacks",
    "order_attack": "filter_attacks",
}

__all__ = [
    "Adversary",
    "AttackFinding",
    "Codebook",
    "Eavesdropper",
    "IntervalEstimate",
    "NameList",
    "PrimaryView",
    "RankPlaceEncoder",
    "TrueLocations",
    "completion_attack",
    "consistency_attack",
    "direction_attack",
    "distance_attack",
    "frequency_attack",
    "graph_attack",
    "greedy_attack",
    "grid_attack",
    "inversion_attack",
    "likelihood_attack",
    "link_graph_attack",
    "multilateration_attack",
    "norm_attack",
    "order_attack",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: some attacks need torch or scikit-learn, most need neither."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim.attack' has no attribute '{name}'")
    return getattr(import_module(f"fedsim.attack.{_HOMES[name]}"), name)
