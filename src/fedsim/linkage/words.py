"""Split names and titles into words, and weight each word by how distinctive it is; for filters and plain metrics.

In ``Belgor Marine Ltd`` the first word identifies a company and the last one identifies nothing. The weight of a word
is the log of its inverse document frequency, scaled to [0, 1]: 1 for a word in one record, 0 for a word in all records.
The counts come from a party's own column or from a list that the parties agree on. A word that differs from a much more
frequent one by a typing error or two gets the weight of that word; otherwise ``Lmited`` would be the rarest word of its
record.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.search.runner import to_text_array
from fedsim.registry import LazyModule
from fedsim.types import Floats, Integers
from fedsim.validation import validate_number

if TYPE_CHECKING:
    from fedsim.linkage.search import text as text_search
else:  # numba takes a second to import
    text_search = LazyModule("fedsim.linkage.search.text")

_SEPARATOR = "\x1e"  # between texts that are normalised as one string; a control character, so no part of a word
_ACCENTS = re.compile("[\u0300-\u036f]+")  # of Latin, Greek and Cyrillic; marks of other scripts are letters
_BARE = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"}
_STROKES = re.compile(f"[{''.join(_BARE)}]")  # letters that Unicode does not decompose
_APOSTROPHES = re.compile("['`´\u02bc\u2018\u2019\uff07]")
# The points of initials, which make one word: G.m.b.H. and I. B. M.
_INITIALS = re.compile(r"\.(?<=(?<![^\W_])[^\W\d_]\.) ?(?=[^\W\d_](?![^\W_]))")
# Japanese writes no spaces, but changes of script separate most words: 株式会社 トヨタ.
_KANA = re.compile(r"([\u3041-\u309f]+|[\u30a1-\u30ff]+)")

# Spellings of common legal forms, by language; longer forms are replaced before their parts.
LEGAL_FORMS: dict[str, dict[str, str]] = {
    "en": {
        "private limited": "pte ltd",
        "pvt": "pte",
        "pty": "pte",
        "limited": "ltd",
        "incorporated": "inc",
        "corporation": "corp",
        "company": "co",
        "public limited company": "plc",
        "limited liability company": "llc",
        "limited liability partnership": "llp",
    },
    "de": {
        "gesellschaft mit beschrankter haftung": "gmbh",
        "gesellschaft mbh": "gmbh",
        "ges mbh": "gmbh",
        "mbh": "gmbh",
        "aktiengesellschaft": "ag",
        "kommanditgesellschaft": "kg",
        "offene handelsgesellschaft": "ohg",
        "eingetragener verein": "ev",
        "eingetragene genossenschaft": "eg",
    },
    "fr": {
        "societe anonyme": "sa",
        "societe a responsabilite limitee": "sarl",
        "societe par actions simplifiee": "sas",
        "etablissements": "ets",
        "compagnie": "cie",
    },
    "es": {
        "sociedad anonima": "sa",
        "sociedad de responsabilidad limitada": "srl",
        "sociedad limitada": "sl",
        "compania": "cia",
    },
    "it": {
        "societa per azioni": "spa",
        "societa a responsabilita limitata": "srl",
        "societa in accomandita semplice": "sas",
        "fratelli": "flli",
    },
    "pt": {"sociedade anonima": "sa", "limitada": "ltda", "companhia": "cia"},
    "nl": {"besloten vennootschap": "bv", "naamloze vennootschap": "nv"},
    "pl": {"spolka z ograniczona odpowiedzialnoscia": "sp zoo", "sp z oo": "sp zoo", "spolka akcyjna": "sa"},
    "nordic": {
        "aktiebolag": "ab",
        "aktieselskab": "as",
        "aksjeselskap": "as",
        "osakeyhtio": "oy",
        "anpartsselskab": "aps",
    },
    "ja": {"株式会社": "kk", "有限会社": "yk"},
}


@dataclass(frozen=True)
class WordRules:
    """How a text is split into words; both parties need the same rules.

    Upper and lower case are equal, and so are ``é`` and ``e``, ``ø`` and ``o`` (Latin, Greek and Cyrillic accents).

    Parameters
    ----------
    legal_forms
        Languages, keys of :data:`LEGAL_FORMS`, whose legal forms are shortened: ``Limited`` to ``ltd``.
    drop_legal_forms
        Whether the legal forms of those languages are dropped instead; a name that consists of nothing else is kept.

    Examples
    --------
    >>> WordRules().split("Müller & Söhne  G.m.b.H.")
    ['muller', 'sohne', 'gmbh']
    >>> WordRules(legal_forms=("de",), drop_legal_forms=True).split("Müller Gesellschaft mbH")
    ['muller']
    """

    legal_forms: tuple[str, ...] = ()
    drop_legal_forms: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.legal_forms) - set(LEGAL_FORMS)
        if unknown:
            message = f"legal_forms: language {min(unknown)!r} is unknown; choose from {', '.join(LEGAL_FORMS)}"
            raise SettingError(message, code="unknown-language", value=min(unknown), known=tuple(LEGAL_FORMS))

    def split(self, text: str) -> list[str]:
        """Return the words of one text, in order."""
        return self.split_all([text])[0]

    def split_all(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of every text, in order."""
        return [line.split() for line in self._spaced_texts(texts).split(_SEPARATOR)][: len(texts)]

    def _spaced_texts(self, texts: Sequence[str]) -> str:
        """Return all texts as one string: words separated by spaces, texts by the separator.

        Processing one string is ten times as fast as one text at a time; most of the work is Unicode normalisation,
        which plain ASCII does not need.
        """
        spaced = list(texts)
        for is_ascii in (True, False):
            rows = [row for row, text in enumerate(texts) if text.isascii() is is_ascii]
            if rows:
                joined = _SEPARATOR.join([texts[row].replace(_SEPARATOR, " ") for row in rows])
                for row, text in zip(rows, self._spaced(joined).split(_SEPARATOR), strict=True):
                    spaced[row] = text
        replacements = self._replacements()
        if replacements:
            spaced = [" ".join(_replace_phrases(text.split(), replacements)) for text in spaced]
        return _SEPARATOR.join(spaced)

    @staticmethod
    def _spaced(text: str) -> str:
        """Return normalised text with words separated by spaces."""
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        if not text.isascii():
            text = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))
            text = _STROKES.sub(lambda letter: _BARE[letter[0]], text)
        text = _INITIALS.sub("", _APOSTROPHES.sub("", text))
        # Python's \w excludes vowel signs, which are parts of words in half of the scripts.
        between = [char for char in set(text) - {_SEPARATOR} if unicodedata.category(char)[0] not in "LMN"]
        text = text.translate(dict.fromkeys(map(ord, between), " "))
        return text if text.isascii() else _KANA.sub(r" \1 ", text)

    def _replacements(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        forms = [pair for language in self.legal_forms for pair in LEGAL_FORMS[language].items()]
        phrases = {tuple(long.split()): tuple(short.split()) for long, short in forms}
        if self.drop_legal_forms:
            phrases |= dict.fromkeys(phrases.values(), ())
            phrases |= dict.fromkeys(phrases, ())
        return phrases


def _replace_phrases(words: list[str], replacements: Mapping[tuple[str, ...], tuple[str, ...]]) -> list[str]:
    """Replace the longest phrase at every position; a text that consists only of dropped phrases is kept."""
    longest = max(map(len, replacements))
    replaced: list[str] = []
    place = 0
    while place < len(words):
        for size in range(min(longest, len(words) - place), 0, -1):
            phrase = tuple(words[place : place + size])
            if phrase in replacements:
                replaced += replacements[phrase]
                place += size
                break
        else:
            replaced.append(words[place])
            place += 1
    return replaced or words


class WordTable(NamedTuple):
    """The words of many texts as numbers."""

    vocabulary: list[str]  # distinct words, in order of first occurrence
    words: Integers  # of all texts in order: positions in the vocabulary
    starts: Integers  # text i has the words from starts[i] to starts[i + 1]

    def document_counts(self) -> Integers:
        """Return the number of texts in which each word of the vocabulary occurs."""
        counts: Integers = text_search.count_texts(self.words, self.starts, len(self.vocabulary))
        return counts


def tabulate_words(texts: Sequence[str], rules: WordRules) -> WordTable:
    """Return the words of many texts as numbers.

    >>> table = tabulate_words(["Bel Marine", "Gor Marine"], WordRules())
    >>> table.vocabulary, table.words.tolist(), table.starts.tolist()
    (['bel', 'marine', 'gor'], [0, 1, 2, 1], [0, 2, 4])
    """
    spaced = rules._spaced_texts(texts)
    words, starts, first = text_search.number_words(to_text_array([spaced]).chars, ord(_SEPARATOR), len(texts))
    return WordTable([spaced[begin:end] for begin, end in first.tolist()], words, starts)


FREQUENT_SHARE = 0.005  # of the texts: a word in more of them is frequent
FREQUENT_RATIO = 20  # a misspelling is this many times as rare as the word: "land" is not a misspelt "and"


@dataclass(frozen=True, eq=False)
class WordWeights:
    """Weights of words from the number of texts in which they occur.

    Parameters
    ----------
    counts
        The number of texts in which each word occurs. Words that are not listed count as occurring in one text.
    n_texts
        The number of texts that were counted.
    tolerant
        Whether a word that resembles a frequent one counts as that word: it is at least :data:`FREQUENT_RATIO` times
        as rare and differs by at most :func:`typing_errors` edits.

    Examples
    --------
    >>> WordWeights({"ltd": 50, "belgor": 1}, n_texts=100).of(["belgor", "ltd", "unseen"]).round(2).tolist()
    [1.0, 0.15, 1.0]
    """

    counts: Mapping[str, int]
    n_texts: int
    tolerant: bool = True

    def __post_init__(self) -> None:
        validate_number(self.n_texts, "n_texts", least=0)

    @classmethod
    def fit(cls, table: WordTable, *, tolerant: bool = True) -> "WordWeights":
        """Count the words of a party's own column; texts without a word are not counted."""
        counts = dict(zip(table.vocabulary, table.document_counts().tolist(), strict=True))
        return cls(counts, int((np.diff(table.starts) > 0).sum()), tolerant)

    def of(self, words: Sequence[str]) -> Floats:
        """Return the weight of each word, between 0 and 1.

        The weight is log(n / c) / log(n), where c of the n texts contain the word, or the most frequent word that it
        resembles.
        """
        counts = np.fromiter((self.counts.get(word, 1) for word in words), np.int64, len(words))
        if self.tolerant:
            counts = np.maximum(counts, self._resembled_counts(words, counts))
        if self.n_texts < 2:
            return np.ones(len(words))
        counts = np.clip(counts, 1, self.n_texts)
        return np.asarray(np.log(self.n_texts / counts) / np.log(self.n_texts))

    @cached_property
    def _frequent(self) -> list[str]:
        least = max(FREQUENT_SHARE * self.n_texts, FREQUENT_RATIO)
        return [word for word, count in self.counts.items() if count >= least and typing_errors(word)]

    def _resembled_counts(self, words: Sequence[str], counts: Integers) -> Integers:
        """Return the count of the most frequent word that each word resembles, or 0 if there is none."""
        frequent = self._frequent
        limits = np.fromiter(map(typing_errors, words), np.int64, len(words))
        checked = np.flatnonzero(limits)
        most = np.zeros(len(words), np.int64)
        if not frequent or not len(checked):
            return most
        kernel = text_search.TextKernel(frequent, [words[place] for place in checked.tolist()], normalised=False)
        for tile in kernel.tiles():
            near = kernel.block(tile) <= limits[checked]  # (frequent words of the tile, words)
            theirs = np.array([self.counts[frequent[row]] for row in tile])[:, np.newaxis]
            near &= theirs >= FREQUENT_RATIO * counts[checked]
            most[checked] = np.maximum(most[checked], np.where(near, theirs, 0).max(axis=0))
        return most


def typing_errors(word: str) -> int:
    """Return how many typing errors a word may have and still be recognised.

    Words with digits have none: ``2017`` is not a misspelt ``2018``.

    >>> [typing_errors(word) for word in ("sa", "ltd", "limited", "b2b")]
    [0, 1, 2, 0]
    """
    if len(word) < 3 or not word.isalpha():
        return 0
    return 1 if len(word) < 6 else 2
