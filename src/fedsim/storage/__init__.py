"""Atomic files and folders, secrets, digests and tensor files."""

__all__ = ["files", "tensor_file"]
