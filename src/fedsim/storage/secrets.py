"""The secret file of a party, from which its noise and pseudonyms are derived."""

import secrets
from pathlib import Path

from fedsim.errors import FileError
from fedsim.privacy.keyed_prng import SECRET_BYTES
from fedsim.storage.files import atomic_write


def load_or_create_secret(path: Path | str) -> bytes:
    """Read a secret, which is created on first use and which only its owner may read.

    Never share it: whoever knows it can undo noise and pseudonyms. If it is lost, new noise is drawn.
    """
    path = Path(path)
    try:
        if not path.exists():
            with atomic_write(path, mode=0o600) as part:
                part.write_text(secrets.token_bytes(SECRET_BYTES).hex() + "\n", encoding="ascii")
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        raise FileError(f"cannot read the secret {path}: {error.strerror}", code="not-readable") from error
    except ValueError:  # its message quotes the text, and the text is the secret
        secret = b""
    if len(secret) != SECRET_BYTES:
        way_out = "restore a backup, or move it away to start again with new noise and pseudonyms"
        raise FileError(f"{path} does not hold {2 * SECRET_BYTES} hexadecimal digits; {way_out}", code="bad-secret")
    return secret
