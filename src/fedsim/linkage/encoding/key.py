"""The secret key the parties share and the coordinator never sees.

One key serves many purposes; each gets its own subkey by HKDF-SHA256 (RFC 5869), so that nothing learnt about one
field's filters helps with another field's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from fedsim.errors import FileError, SettingError
from fedsim.storage.files import atomic_write

KEY_BYTES = 32
_SALT = b"fedsim linkage key 1"


@dataclass(frozen=True, repr=False)
class Key:
    """At least 32 secret bytes that make filters comparable; no ``repr`` or message ever shows them.

    >>> Key(bytes(32))
    Key(secret)
    """

    secret: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) < KEY_BYTES:
            raise SettingError(f"a key needs at least {KEY_BYTES} random bytes; make one with Key.generate()")

    def __repr__(self) -> str:
        return "Key(secret)"

    @classmethod
    def generate(cls) -> Key:
        """A fresh key from the operating system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def read(cls, path: Path | str) -> Key:
        """The key in a file that :meth:`write` made."""
        try:
            return cls(bytes.fromhex(Path(path).read_text(encoding="ascii").strip()))
        except OSError as error:
            raise FileError(f"cannot read the key file {path}: {error.strerror}") from error
        except (ValueError, SettingError):
            # The cause is cut off: a decoding error quotes the text, and the text is the secret.
            raise FileError(
                f"{path} is no key file: it must hold at least {2 * KEY_BYTES} hexadecimal digits and nothing else; "
                "copy the other party's key file again"
            ) from None

    def write(self, path: Path | str) -> None:
        """Store the key as hexadecimal text that only its owner may read; an existing file is never overwritten."""
        path = Path(path)
        if path.exists():
            raise FileError(f"{path} exists and may be the only copy of a key; move it away or choose another name")
        with atomic_write(path, mode=0o600) as part:
            part.write_text(self.secret.hex() + "\n", encoding="ascii")

    def derive(self, label: str) -> bytes:
        """The 32-byte subkey of one purpose; subkeys of different labels say nothing about each other.

        >>> Key(bytes(32)).derive("pivots of age") == Key(bytes(32)).derive("pivots of size")
        False
        """
        return hkdf_sha256(self.secret, _SALT, label.encode(), KEY_BYTES)


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Key derivation of RFC 5869 with SHA-256: extract, then expand to ``length`` bytes (at most 8,160)."""
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    block, output = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), hashlib.sha256)
        output += block
    return output[:length]
