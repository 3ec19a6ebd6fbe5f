"""Bounds on what a recipient of noisy values can learn, and mechanisms that limit it."""

__all__ = ["bounds", "geodesy", "keyed_prng", "mechanisms"]
