"""Company names, and how a second register would have spelled them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SYLLABLES = (
    "al an ar bel bor cal cor dan del dor el en fal gan gor hal har il ka kel lan lin lor mar mel mir nor or pal "
    "per ran ros sal sen sol tan tor ul val ver vin wes zan"
)
TRADES = (
    "Logistics Foods Textiles Engineering Marine Motors Pharma Timber Software Energy Packaging Optics Travel "
    "Printing Chemicals Robotics Catering Security Paper Glass"
)
PLACES = "North South East West Pacific Central United General National Royal"
FORMS = {
    "Ltd": ("Limited", "Ltd.", ""),
    "GmbH": ("Gesellschaft mbH", "G.m.b.H.", ""),
    "Inc": ("Incorporated", "Inc.", ""),
    "SA": ("S.A.", "Societe Anonyme", ""),
    "Pte Ltd": ("Private Limited", "Pte. Ltd.", ""),
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def new_name(rng: np.random.Generator) -> str:
    """A name nobody owns, such as ``Belgor Marine Ltd``."""
    root = "".join(rng.choice(SYLLABLES.split(), size=int(rng.integers(2, 4)))).capitalize()
    place = [_one_of(rng, PLACES)] if rng.random() < 0.25 else []
    return " ".join([*place, root, _one_of(rng, TRADES), str(rng.choice(list(FORMS)))])


def _one_of(rng: np.random.Generator, words: str) -> str:
    return str(rng.choice(words.split()))


@dataclass(frozen=True, eq=False)
class Spelling:
    """Another clerk's hand: legal form, word order, case and typing errors, each now and then."""

    rng: np.random.Generator

    def of(self, name: str) -> str:
        """The name as the other register has it."""
        name = self._form(name) if self.rng.random() < 0.5 else name
        name = self._turned(name) if self.rng.random() < 0.08 else name
        for _ in range(int(self.rng.choice(4, p=[0.45, 0.3, 0.15, 0.1]))):
            name = self._typo(name)
        return name.upper() if self.rng.random() < 0.05 else name

    def _form(self, name: str) -> str:
        form = next(form for form in sorted(FORMS, key=len, reverse=True) if name.endswith(f" {form}"))
        return f"{name.removesuffix(form)}{self.rng.choice(FORMS[form])}".rstrip()

    def _turned(self, name: str) -> str:
        first, *rest = name.split()
        return f"{' '.join(rest)}, {first}"

    def _typo(self, name: str) -> str:
        """One letter lost, doubled, mistaken, or swapped with the next one."""
        place = int(self.rng.integers(1, max(2, len(name) - 1)))
        head, letter, tail = name[:place], name[place], name[place + 1 :]
        wrong = str(self.rng.choice(list(LETTERS)))
        swapped = f"{head}{tail[:1]}{letter}{tail[1:]}"
        return str(self.rng.choice([head + tail, head + letter + letter + tail, head + wrong + tail, swapped]))
