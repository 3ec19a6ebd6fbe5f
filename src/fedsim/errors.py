"""The errors FedSim raises on purpose.

A message says what was seen, which rule it breaks and the way out; it never shows an identifier, a feature or a key.

::

    FedSimError             catch this to catch them all; the command line prints it and exits with 2
     +-- InputError         a table, column or record breaks a rule (names table, column and row number)
     +-- SettingError       a parameter is outside its range (names parameter, value and range)
     +-- FingerprintError   two encoded tables were made with different schemas or keys
     +-- FileError          a file cannot be read or written
     |    +-- KeyServerError  the key server is not responding; the command line exits with 3
     +-- StaleResultError   a stored result is of other inputs (names the changes); the command line exits with 3
     +-- DeviceError        the requested device is not available
     +-- PolicyError        a party's own rules or its owner's approval forbid the job
     +-- PeerError          another party refused, failed or cannot be reached (names the party and its reason)
     |    +-- AwayError     it is temporarily unavailable; the command line exits with 3
     +-- WireError          bytes from a peer break the protocol (names the message and the rule)
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def replace_unprintable(text: str, *, lines: bool = False) -> str:
    """Return text that can neither control a terminal nor forge a line of a log or hide what it says.

    Line breaks and unusual spaces become spaces; all else that is unprintable, such as escape sequences and marks that
    reverse the direction of writing, becomes question marks. With ``lines``, line feeds stay.

    >>> replace_unprintable("red\\x1b[31m\\nfake line")
    'red?[31m fake line'
    """
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(char if char.isprintable() or char in kept else " " if char.isspace() else "?" for char in text)


class FedSimError(Exception):
    """Anything that the caller can fix.

    Parameters
    ----------
    message
        One sentence for a person: the value seen, the rule it breaks, the way out.
    code
        A short name for the kind of error, for programs and tests, such as ``"k-too-large"``; wording may change, codes
        do not.
    **details
        The values behind the message, as attributes: ``error.limit``. Never a user's record.

    Examples
    --------
    >>> error = FedSimError("k=50, but there are 12 records; choose k between 1 and 12", code="k-too-large", limit=12)
    >>> error.code, error.limit
    ('k-too-large', 12)
    """

    def __init__(self, message: str = "", *, code: str = "", **details: object) -> None:
        super().__init__(replace_unprintable(str(message)))  # it may name a column, or quote a peer or a file
        self.code = code
        self.details = details

    def __getattr__(self, name: str) -> Any:
        if name != "details" and name in self.details:
            return self.details[name]
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")


class InputError(FedSimError, ValueError):
    """A table, a column or a record breaks a rule; also a ``ValueError``, as scikit-learn expects of its estimators."""


class SettingError(FedSimError, ValueError):
    """A parameter is outside its range; also a ``ValueError``, as scikit-learn expects of its estimators."""


class FingerprintError(FedSimError):
    """Two encoded tables do not belong together."""


class FileError(FedSimError):
    """A file cannot be read or written."""


class KeyServerError(FileError):
    """The key server, OpenBao or Vault, is not responding; retrying later may succeed."""


class StaleResultError(FedSimError):
    """A stored result is of other inputs than those at hand; its ``changes`` say which, ``--again`` replaces it."""


class DeviceError(FedSimError):
    """The requested device is not available."""


class PolicyError(FedSimError):
    """A party's own rules or its owner's approval forbid the job; the text may be sent to the other parties."""


class PeerError(FedSimError):
    """Another party refused, failed or cannot be reached."""


class AwayError(PeerError):
    """Another party is temporarily unavailable; retrying later may succeed."""


class WireError(FedSimError):
    """Bytes from a peer break the protocol."""


def nearest_word(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known word most similar to ``word``, or an empty string if no similarity reaches ``cutoff``.

    >>> nearest_word("euclidian", ["euclidean", "days"]), nearest_word("metres", ["euclidean", "days"])
    ('euclidean', '')
    """
    return next(iter(get_close_matches(str(word), list(known), n=1, cutoff=cutoff)), "")
