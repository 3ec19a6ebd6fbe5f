"""Predictions over HTTP at the primary."""

from fedsim.serving.service import create_app

__all__ = ["create_app"]
