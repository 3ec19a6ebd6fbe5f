"""The three roles as processes: coordinator, primary, secondary, and prediction with all of them online.

Imports nothing by itself: a secondary must not load the training code, nor the coordinator any network.
"""

__all__ = ["coordinator", "party_context", "predict", "primary", "run_local", "secondary"]
