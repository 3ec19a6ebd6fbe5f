"""Attacks on one's own linkage and model, each by one adversary with what that adversary really sees."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.attack.codebook import Codebook
    from fedsim.attack.completion import completion_attack
    from fedsim.attack.eavesdrop import Eavesdropper
    from fedsim.attack.encoded import RankedPlaces
    from fedsim.attack.finding import Adversary, Estimate, Finding
    from fedsim.attack.frequency import NameList, frequency_attack
    from fedsim.attack.gradients import direction_attack, norm_attack
    from fedsim.attack.graphs import graph_attack
    from fedsim.attack.greedy import distance_attack, greedy_attack
    from fedsim.attack.inversion import inversion_attack
    from fedsim.attack.likelihood import grid_attack, likelihood_attack
    from fedsim.attack.linkgraph import link_graph_attack
    from fedsim.attack.membership import membership_attack
    from fedsim.attack.multilateration import multilateration_attack
    from fedsim.attack.order import order_attack
    from fedsim.attack.places import Truth
    from fedsim.attack.view import PrimaryView

_HOMES = {
    "Adversary": "finding",
    "Codebook": "codebook",
    "Eavesdropper": "eavesdrop",
    "Estimate": "finding",
    "Finding": "finding",
    "NameList": "frequency",
    "PrimaryView": "view",
    "RankedPlaces": "encoded",
    "Truth": "places",
    "completion_attack": "completion",
    "direction_attack": "gradients",
    "distance_attack": "greedy",
    "frequency_attack": "frequency",
    "graph_attack": "graphs",
    "greedy_attack": "greedy",
    "grid_attack": "likelihood",
    "inversion_attack": "inversion",
    "likelihood_attack": "likelihood",
    "link_graph_attack": "linkgraph",
    "membership_attack": "membership",
    "multilateration_attack": "multilateration",
    "norm_attack": "gradients",
    "order_attack": "order",
}

__all__ = [
    "Adversary",
    "Codebook",
    "Eavesdropper",
    "Estimate",
    "Finding",
    "NameList",
    "PrimaryView",
    "RankedPlaces",
    "Truth",
    "completion_attack",
    "direction_attack",
    "distance_attack",
    "frequency_attack",
    "graph_attack",
    "greedy_attack",
    "grid_attack",
    "inversion_attack",
    "likelihood_attack",
    "link_graph_attack",
    "membership_attack",
    "multilateration_attack",
    "norm_attack",
    "order_attack",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: some attacks need torch or scikit-learn, most need neither."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim.attack' has no attribute '{name}'")
    return getattr(import_module(f"fedsim.attack.{_HOMES[name]}"), name)
