"""Where keys and certificates are: in files, environment variables, or an entry in OpenBao or HashiCorp Vault.

A setting that names a secret is a path, ``env:NAME`` or ``vault:PATH#FIELD``. No message, log line or ``repr`` shows a
value. The client of the server is in the package ``fedsim_ops``.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedsim.errors import FileError, SettingError
from fedsim.registry import SERVICES

_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_VAULT = re.compile(r"vault:([^\s?#]+)(?:\?version=([0-9]{1,9}))?#([^\s#]+)")
_SCHEMES = ("env:", "vault:")


@dataclass(frozen=True)
class SecretReference:
    """Where a secret is: an environment variable, or a field of an entry in OpenBao or Vault.

    >>> str(SecretReference.parse("vault:secret/data/fedsim?version=3#linkage_key"))
    'vault:secret/data/fedsim?version=3#linkage_key'
    >>> SecretReference.parse("keys/linkage.key") is None
    True
    """

    variable: str = ""
    path: str = ""
    version: str = ""
    field: str = ""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the reference in a setting, or None if the setting is a file path."""
        if not text.startswith(_SCHEMES):
            return None
        if found := _VARIABLE.fullmatch(text):
            return cls(variable=found[1])
        if (found := _VAULT.fullmatch(text)) and not {"", ".", ".."} & set(found[1].split("/")):
            return cls(path=found[1], version=found[2] or "", field=found[3])
        rule = "write env:NAME, or vault:PATH#FIELD as in vault:secret/data/fedsim#linkage_key"
        raise SettingError(f"invalid reference to a key; {rule}, or ./NAME for a file", code="bad-reference")

    def __str__(self) -> str:
        if self.variable:
            return f"env:{self.variable}"
        version = f"?version={self.version}" if self.version else ""
        return f"vault:{self.path}{version}#{self.field}"

    def read(self) -> bytes:
        """Return the secret; raise ``FileError`` if it does not exist, ``KeyServerError`` if the server is down."""
        if self.path:
            return str(SERVICES["key-server"](self)).encode()
        value = os.environ.get(self.variable, "")
        if not value:
            raise FileError(f"{self}: this environment variable is not set; export it", code="no-variable")
        return value.encode(errors="surrogateescape")


SecretSource = Path | SecretReference


def read_secret(source: SecretSource) -> bytes:
    """Return a secret from its source; raise ``OSError`` for a file that cannot be read."""
    return source.read_bytes() if isinstance(source, Path) else source.read()
