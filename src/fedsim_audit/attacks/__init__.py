"""Attacks on your own linkage and model; each uses only what one adversary sees."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports

if TYPE_CHECKING:
    from fedsim_audit.attacks.attack_finding import AttackFinding, IntervalEstimate
    from fedsim_audit.attacks.cut_layer_attacks import (
        Eavesdropper,
        completion_attack,
        direction_attack,
        inversion_attack,
        norm_attack,
    )
    from fedsim_audit.attacks.filter_attacks import NameList, frequency_attack, graph_attack, map_attack, order_attack
    from fedsim_audit.attacks.location_attacks import (
        TrueLocations,
        consistency_attack,
        grid_attack,
        link_graph_attack,
        multilateration_attack,
    )
    from fedsim_audit.attacks.similarity_attacks import (
        Codebook,
        PrimaryView,
        distance_attack,
        greedy_attack,
        likelihood_attack,
    )

__all__ = [
    "AttackFinding",
    "Codebook",
    "Eavesdropper",
    "IntervalEstimate",
    "NameList",
    "PrimaryView",
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
    "map_attack",
    "multilateration_attack",
    "norm_attack",
    "order_attack",
]

_HOMES = {
    "cut_layer_attacks": ["Eavesdropper", "completion_attack", "direction_attack", "inversion_attack", "norm_attack"],
    "filter_attacks": ["NameList", "frequency_attack", "graph_attack", "map_attack", "order_attack"],
    "attack_finding": ["AttackFinding", "IntervalEstimate"],
    "location_attacks": [
        "TrueLocations",
        "consistency_attack",
        "grid_attack",
        "link_graph_attack",
        "multilateration_attack",
    ],
    "similarity_attacks": ["Codebook", "PrimaryView", "distance_attack", "greedy_attack", "likelihood_attack"],
}
__getattr__ = lazy_exports(__name__, _HOMES)
