"""Files, digests and secrets on disk."""
