"""Atomic files and folders, tensor files, digests and secrets on disk."""

__all__ = ["digest", "files", "secrets", "tensor_file"]
