"""The secret key that the parties share and the coordinator never sees."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsim.errors import FileError, SettingError
from fedsim.storage.files import atomic_write

KEY_BYTES = 32
_SALT = b"fedsim linkage key 1"


@dataclass(frozen=True, repr=False)
class Key:
    """The secret that makes filters of several parties comparable; no ``repr`` or message ever shows it.

    Parameters
    ----------
    secret
        At least 32 random bytes.

    Examples
    --------
    >>> Key(bytes(32))
    Key(secret)
    """

    secret: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) < KEY_BYTES:
            message = f"a key needs at least {KEY_BYTES} random bytes; create one with Key.generate()"
            raise SettingError(message, code="key-too-short")

    def __repr__(self) -> str:
        return "Key(secret)"

    @classmethod
    def generate(cls) -> Key:
        """Return a new random key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def read(cls, path: Path | str) -> Key:
        """Read a key that :meth:`write` stored."""
        try:
            return cls(bytes.fromhex(Path(path).read_text(encoding="ascii").strip()))
        except OSError as error:
            raise FileError(f"cannot read the key file {path}: {error.strerror}", code="not-readable") from error
        except (ValueError, SettingError):
            # Without the cause: a decoding error quotes the text, and the text is the secret.
            message = (
                f"{path} is not a key file of {2 * KEY_BYTES} or more hexadecimal digits; copy the other party's again"
            )
            raise FileError(message, code="bad-key-file") from None

    def write(self, path: Path | str) -> None:
        """Store the key as hexadecimal digits that only the owner may read; never overwrite a file."""
        path = Path(path)
        if path.exists():
            message = f"{path} exists and may be the only copy of a key; move it away or choose another name"
            raise FileError(message, code="file-exists")
        with atomic_write(path, mode=0o600) as part:
            part.write_text(self.secret.hex() + "\n", encoding="ascii")

    def derive(self, label: str) -> bytes:
        """Return the 32-byte subkey of one purpose, by HKDF-SHA256 (RFC 5869).

        Subkeys of different labels reveal nothing about each other, so what is learnt about the filters of one field
        does not help with another.

        >>> Key(bytes(32)).derive("pivots of age") == Key(bytes(32)).derive("pivots of size")
        False
        """
        return HKDF(SHA256(), length=KEY_BYTES, salt=_SALT, info=label.encode()).derive(self.secret)
