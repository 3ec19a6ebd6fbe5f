"""A party's own secret file, the source of its noise and pseudonyms."""

from __future__ import annotations

import secrets
from pathlib import Path

from fedsim.errors import FileError
from fedsim.privacy.keyed_prng import SECRET_BYTES
from fedsim.storage.files import atomic_write


def load_or_create_secret(path: Path | str) -> bytes:
    """The secret in a file, which is made on first use and which only its owner may read.

    No other party may know it: with it, noise and pseudonyms can be undone. Who loses it draws new noise.
    """
    path = Path(path)
    try:
        return _read_secret(path)
    except FileNotFoundError:
        with atomic_write(path, mode=0o600) as part:
            part.write_text(secrets.token_bytes(SECRET_BYTES).hex() + "\n", encoding="ascii")
        return _read_secret(path)
    except OSError as error:
        raise FileError(f"cannot read the secret {path}: {error.strerror}") from error


def _read_secret(path: Path) -> bytes:
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:  # it quotes the text, and the text is the secret
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise FileError(
            f"{path} holds no secret of {2 * SECRET_BYTES} hexadecimal digits; restore it from a copy, "
            "or move it away to begin anew with other noise and other pseudonyms"
        )
    return secret
