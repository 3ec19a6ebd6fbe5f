"""The metrics, one file per kind of identifier."""
