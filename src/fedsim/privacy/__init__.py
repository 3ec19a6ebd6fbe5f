"""Bounds on what a recipient of noisy values can learn, and mechanisms that limit it."""

__all__ = ["bounds", "differential_privacy", "geodesy", "keyed_prng", "mechanisms", "pair_noise"]
