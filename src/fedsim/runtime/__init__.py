"""The three roles as processes: coordinator, primary, secondary, and prediction with all of them online."""

from fedsim.registry import lazy_exports

# A secondary must not load the training code, nor the coordinator any network.
_HOMES = {
    "coordinator": ["run_coordinator"],
    "party_context": ["PartyContext", "open_party_context"],
    "predictor": ["Predictor"],
    "primary": ["run_primary"],
    "secondary": ["run_secondary"],
}

__all__ = [name for names in _HOMES.values() for name in names]

__getattr__ = lazy_exports(__name__, _HOMES)
