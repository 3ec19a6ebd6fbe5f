"""Predictions over HTTP at the primary."""
