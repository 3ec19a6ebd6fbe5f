"""Where a party file says a thing, and which kind of file a path leads to."""

from __future__ import annotations

from pathlib import Path

from fedsim.errors import FedSimError, nearest_word
from fedsim.party.party_file import PartyFile
from fedsim.party.toml_file import file_text, setting_lines, toml_words

Setting = tuple[str, ...]  # such as ("label", "column")


def place_of(own: PartyFile, setting: Setting) -> str:
    """The party file, the line and the setting, as a sentence begins; nothing for one that is not written there."""
    try:
        line = setting_lines(file_text(own.path)).get(setting)
    except FedSimError:  # the file has gone since it was read
        return ""
    return f"{own.path}, line {line}: {'.'.join(setting)}: " if line else ""


def is_party_file(path: Path) -> bool:
    """Whether a file is meant to be that of a party, sound or not."""
    words = _settings(path)
    return "role" in words and "secondaries" not in words


def is_job_file(path: Path) -> bool:
    """Whether a file is meant to be a job, sound or not."""
    words = _settings(path)
    return "secondaries" in words and "role" not in words


def nearest_file(path: Path) -> str:
    """The file beside one that is not there whose name was probably meant; of the same kind, by its ending."""
    try:
        beside = [other.name for other in path.parent.iterdir() if other.suffixes == path.suffixes]
    except OSError:
        return ""
    stems = {name.partition(".")[0]: name for name in sorted(beside)}
    return stems.get(nearest_word(path.name.partition(".")[0], stems), "")


def _settings(path: Path) -> set[str]:
    try:
        return set(toml_words(file_text(path), path))
    except FedSimError:
        return set()
