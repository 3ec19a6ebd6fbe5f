"""Metrics for names and titles: weighted q-grams of words, TF-IDF cosine, Jaro-Winkler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedsim.linkage import identifiers
from fedsim.linkage.metrics import Backend, blocks_backend
from fedsim.linkage.search import grams
from fedsim.linkage.search.grams import GramSearch, GramTexts
from fedsim.linkage.search.jaro import JaroSearch
from fedsim.linkage.search.runner import DistanceBlocks
from fedsim.linkage.words import WordRules
from fedsim.validation import validate_integer


@dataclass(frozen=True)
class _GramMetric:
    """Code shared by the two q-gram metrics; a base class, because metrics are dataclasses whose fields users set."""

    CELLS: ClassVar[str] = "text"
    weighs_by_table: ClassVar[bool] = True  # so the candidates cannot be searched in independent parts

    q: int
    rules: WordRules = field(default_factory=WordRules)
    name: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        validate_integer(self.q, "q", least=2, most=3)

    def prepare(self, records: Any, table: str) -> GramTexts:
        return GramTexts(identifiers.strings(records, table), self.rules)

    def blocks(self, left: GramTexts, right: GramTexts) -> GramSearch:
        raise NotImplementedError

    def backends(self, queries: GramTexts, candidates: GramTexts, k: int) -> Sequence[Backend]:
        index = Backend("index", "inverted index of q-grams", lambda: self.blocks(queries, candidates))
        return [index, blocks_backend(self, queries, candidates)]


@dataclass(frozen=True)
class QGramDice(_GramMetric):
    """One minus the weighted Dice coefficient of the q-grams of all words.

    Every word is marked at both ends and cut into q-grams. The weight of a q-gram reflects how rare its word is (see
    :class:`fedsim.linkage.words.WordWeights`): from 100 for a word in one record down to 1 for a word in all records.
    The distance is ``1 - 2 * common / (ours + theirs)``, where ``common`` sums the lower of the two weights of each
    q-gram. Words are counted only in the secondary table (the candidates), so a query finds the same partners whatever
    other queries there are. Two texts without any word are equal.

    Parameters
    ----------
    q
        Characters per q-gram, 2 or 3.
    rules
        How a text is split into words.

    Examples
    --------
    >>> from fedsim.linkage import topk
    >>> register = ["North Foods Ltd", "Belgor Marine Ltd", "Belgor Foods Ltd"]
    >>> topk(["foods belgr ltd."], register, metric=QGramDice(), k=1)[0].tolist()
    [[2]]
    """

    q: int = 2
    name: str = "qgram-dice"

    def blocks(self, left: GramTexts, right: GramTexts) -> GramSearch:
        return GramSearch(left, right, grams.word_weighted_grams(self.q), product=False)


@dataclass(frozen=True)
class TfidfCosine(_GramMetric):
    """One minus the cosine of the TF-IDF vectors of the q-grams of all words.

    This is the definition of scikit-learn's ``TfidfVectorizer(analyzer="char_wb")`` on the normalised words, with
    inverse document frequencies rounded to hundredths and counted only in the secondary table (the candidates). Unlike
    in scikit-learn, q-grams that no candidate has count in the length of a query's vector. Two texts without any word
    are equal.

    Parameters
    ----------
    q
        Characters per q-gram, 2 or 3.
    rules
        How a text is split into words.

    Examples
    --------
    >>> from fedsim.linkage import topk
    >>> register = ["Sony DSC-W120 camera", "Canon camera case", "Sony DSC-W150 camera"]
    >>> topk(["dsc w150 by sony"], register, metric=TfidfCosine(), k=2)[0].tolist()
    [[2, 0]]
    """

    q: int = 3
    name: str = "tfidf-cosine"

    def blocks(self, left: GramTexts, right: GramTexts) -> GramSearch:
        return GramSearch(left, right, grams.tfidf_grams(self.q), product=True)


@dataclass(frozen=True)
class JaroWinkler:
    """One minus the Jaro-Winkler similarity of two unnormalised texts; for short names whose beginning matters most.

    This is Winkler's definition with a prefix of up to four characters, which counts for Jaro similarities above 0.7,
    as in rapidfuzz. Two empty texts are equal.

    Examples
    --------
    >>> from fedsim.linkage import topk
    >>> topk(["martha"], ["marhta", "matra", "bertha"], metric=JaroWinkler(), k=3)[0].tolist()
    [[0, 1, 2]]
    """

    CELLS: ClassVar[str] = "text"

    name: str = "jaro-winkler"
    whole: bool = False

    def prepare(self, records: Any, table: str) -> list[str]:
        return identifiers.strings(records, table)

    def blocks(self, left: list[str], right: list[str]) -> DistanceBlocks:
        return JaroSearch(left, right)

    def backends(self, queries: list[str], candidates: list[str], k: int) -> Sequence[Backend]:
        pairs = Backend("pairs", "bit-parallel comparison of pairs", lambda: JaroSearch(queries, candidates))
        return [pairs, blocks_backend(self, queries, candidates)]


QGRAM_DICE, TFIDF_COSINE, JARO_WINKLER = QGramDice(), TfidfCosine(), JaroWinkler()
