"""Check paths before work starts, write files and folders atomically and durably, and keep secrets."""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Self

from fedsim.errors import FileError, SettingError, nearest_word
from fedsim.registry import SERVICES

# Where keys and certificates are: a path, ``env:NAME`` or ``vault:PATH#FIELD`` of OpenBao or HashiCorp Vault. No
# message, log line or ``repr`` shows a value. The client of the server is in the package ``fedsim_ops``.

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


def check_readable(path: Path) -> None:
    """Raise a ``FileError`` if a path is absent, a folder, or not readable by this user."""
    with _translate_path_errors(path):
        if path.is_dir():
            raise FileError(f"{path} is a folder; name the file in it", code="is-a-folder")
        if not path.exists():
            raise FileError(f"{path} does not exist; {missing_file_hint(path)}", code="file-not-found")
        if not os.access(path, os.R_OK):
            raise FileError(f"{path} may not be read by this user; change its permissions", code="not-readable")


def missing_file_hint(path: Path) -> str:
    """Return a question for the file of the same extension whose name is nearest, or the advice to check the path."""
    try:
        names = {other.name.partition(".")[0]: other.name for other in sorted(path.parent.iterdir(), reverse=True)}
    except OSError:
        return "check the path"
    names = {stem: name for stem, name in names.items() if Path(name).suffixes == path.suffixes}
    near = names.get(nearest_word(path.name.partition(".")[0], names))
    return f"did you mean '{near}'?" if near else "check the path"


def check_private(path: SecretSource) -> None:
    """Raise a ``FileError`` if every user of this machine may read or change a file that contains a secret."""
    if isinstance(path, SecretReference):
        return
    with _translate_path_errors(path):
        if os.name == "posix" and path.exists() and path.stat().st_mode & 0o006:
            message = f"{path} is a secret, but every user of this machine may read or change it"
            raise FileError(
                f"{message}; run `chmod 600 {path}`, and replace it if others had access", code="exposed-key"
            )


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); check the disk", code="not-readable") from error


def check_output_paths(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Check that outputs can be written, are different files and do not replace an input."""
    for path in outputs:
        check_writable(path)
    targets = {path.resolve() for path in outputs}
    if len(targets) < len(outputs):
        names = " and ".join(map(str, outputs))
        raise SettingError(f"the outputs {names} are the same file; choose different names", code="same-output")
    for path in inputs:
        if path.resolve() in targets:
            raise SettingError(f"an output would replace the input {path}; choose another name", code="replaces-input")


def check_writable(path: Path) -> None:
    """Check, before a long run, that an output can be written at its end."""
    with _translate_path_errors(path):
        target = path.resolve()
        if path.is_dir():
            raise FileError(f"{path} is a folder; name the file to write in it", code="is-a-folder")
        if target.exists() and not target.is_file():
            raise FileError(f"{path} is not a regular file; choose another name", code="not-a-regular-file")
        folder = target.parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            raise FileError(f"the output folder {folder} does not exist; create it first", code="no-folder")
        if not os.access(folder, os.W_OK):
            raise FileError(f"the folder {folder} may not be written by this user; choose another", code="not-writable")


@contextmanager
def _translate_path_errors(path: Path) -> Iterator[None]:
    """Translate errors for paths that the system cannot resolve: a name too long, a loop of symbolic links."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the system cannot resolve it"
        raise FileError(f"the path {path} cannot be used: {reason}; choose another name", code="bad-path") from error


def ensure_folder(folder: Path) -> Path:
    """Return a folder, creating it and its parents if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot create the folder {folder}: {error.strerror}; choose another folder"
        raise FileError(message, code="not-writable") from error
    return folder


@contextmanager
def atomic_write(path: Path, mode: int = 0o666, *, keep: bool = False) -> Iterator[Path]:
    """Replace a file if the block succeeds, and leave it untouched if the block fails.

    With ``keep``, a file that another process has created in the meantime is left as it is.

    The block writes to a temporary file, whose path it receives; those that killed processes left in the folder are
    removed. File and folder are flushed to disk, so a file that was visible once is still there, complete, after a
    power failure. A symbolic link is kept: the file it points to is
    replaced. The permissions ``mode`` (before umask) are set before the first byte is written, so others can never read
    a secret.
    """
    with _translate_write_errors(path):
        try:
            target = path.resolve()
        except RuntimeError:  # how Python before 3.13 reports a loop of symbolic links
            message = f"cannot write {path}: its symbolic links form a loop; choose another name"
            raise FileError(message, code="bad-path") from None
        if target.exists() and not target.is_file():
            raise FileError(f"cannot write {path}: not a regular file; choose another name", code="not-a-regular-file")
        _clean_once(target.parent)
        part, lock = _create_part(target.parent, mode)
        try:
            yield part
            _sync(part)
            if keep:
                with suppress(FileExistsError):
                    os.link(part, target)
            else:
                part.replace(target)
            _sync(target.parent)
        finally:
            part.unlink(missing_ok=True)
            os.close(lock)


def _create_part(folder: Path, mode: int) -> tuple[Path, int]:
    """Create a temporary file that is locked as long as its writer lives; return it with its lock."""
    while True:
        # A short name: appending a suffix to a long name could exceed the limit.
        part = folder / f".fedsim-{secrets.token_hex(6)}.part"
        lock = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with suppress(OSError):  # a disk without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return part, lock
        os.close(lock)  # another process took it for abandoned before it was locked


def remove_abandoned_parts(folder: Path) -> None:
    """Remove the temporary files of :func:`atomic_write` in a folder whose writer was killed."""
    for part in folder.glob(".fedsim-*.part"):
        with suppress(OSError):  # being written, gone, or another user's
            lock = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
            finally:
                os.close(lock)


_clean_once = cache(remove_abandoned_parts)  # per process: a folder may have many files


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Replace a folder if the block succeeds, and leave it untouched if the block fails.

    The block fills a temporary folder, whose path it receives. The name of that folder is fixed, so the next process
    removes what a killed one left behind; only one process may write a folder at a time.
    """
    part, old = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.old")
    with _translate_write_errors(path):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            yield part
            _sync_folder(part)
            shutil.rmtree(old, ignore_errors=True)
            if path.exists():
                path.rename(old)
            try:
                part.rename(path)
            except OSError:
                if old.exists():
                    old.rename(path)
                raise
            _sync(path.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)


def remove_paths(paths: Iterable[Path]) -> None:
    """Remove files, and folders with all that is in them; what does not exist is no error."""
    for path in paths:
        with _translate_write_errors(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def append_durably(
    path: Path, content: bytes, *, after: int | None = None, mode: int = 0o666, sync: bool = True
) -> None:
    """Append to a file, which need not exist, and flush it to disk; a failed write leaves the file unchanged.

    ``after`` is the number of bytes to keep: an incomplete last line beyond them, left by a killed process, is cut off.
    A new file gets the permissions ``mode`` (before umask). Without ``sync``, the content survives a killed process,
    but possibly not a power failure.
    """
    opener = partial(os.open, mode=mode)
    with _translate_write_errors(path), open(path, "ab", buffering=0, opener=opener) as file:
        size = file.seek(0, os.SEEK_END) if after is None else after
        file.truncate(size)
        try:
            written = 0
            while written < len(content):
                written += file.write(content[written:]) or 0
            if sync:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def record_digest(content: bytes) -> bytes:
    """Return the digest by which a record or request is counted once, see :class:`DigestSet`."""
    return blake2b(content, digest_size=16).digest()


class DigestSet:
    """A set of digests in a file, used to count distinct requests across all processes of a party."""

    def __init__(self, path: Path | None, size: int = 16) -> None:
        """Load the digests from a file, which need not exist; without a path, nothing is stored."""
        self._path, self._size, self._known = path, size, set[bytes]()
        if path is not None and path.is_file():
            content = read_bytes(path)
            complete = len(content) - len(content) % size
            if complete < len(content):  # a killed process left an incomplete digest
                append_durably(path, b"", after=complete)
            self._known = {content[at : at + size] for at in range(0, complete, size)}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._known)

    def missing(self, digests: Iterable[bytes]) -> list[bytes]:
        """Return the distinct digests that are not in the set, sorted."""
        return sorted(set(digests) - self._known)

    def add(self, digests: Iterable[bytes], *, sync: bool = True) -> None:
        """Add digests and wait until they are on disk; without ``sync``, a power failure may lose them."""
        new = self.missing(digests)
        if new and self._path is not None:
            append_durably(self._path, b"".join(new), mode=0o600, sync=sync)
        self._known.update(new)


def load_or_create_secret(path: Path | str) -> bytes:
    """Read a secret from a file that is created on first use and that only its owner may read.

    Never share it: it is enough to undo noise and pseudonyms. If it is lost, new noise is drawn.
    """
    from fedsim.privacy.keyed_prng import SECRET_BYTES  # noqa: PLC0415 - training runs where cryptography is not installed

    path = Path(path)
    try:
        if not path.exists():
            with atomic_write(path, mode=0o600, keep=True) as part:
                part.write_text(secrets.token_bytes(SECRET_BYTES).hex() + "\n", encoding="ascii")
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        raise FileError(f"cannot read the secret {path}: {error.strerror}", code="not-readable") from error
    except ValueError:  # its message quotes the text, and the text is the secret
        secret = b""
    if len(secret) != SECRET_BYTES:
        way_out = "restore a backup, or move it away to start again with new noise and pseudonyms"
        raise FileError(f"{path} does not contain {2 * SECRET_BYTES} hexadecimal digits; {way_out}", code="bad-secret")
    return secret


@contextmanager
def _translate_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or "the disk refused"
        message = f"cannot write {path}: {reason}; check name, folder and free space"
        raise FileError(message, code="not-writable", path=path, reason=reason) from error


def _sync_folder(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
