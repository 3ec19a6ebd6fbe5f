"""Predictions over HTTP at the primary; `fedsim.serving.service.create_app` creates the web application."""

__all__ = ["service"]
