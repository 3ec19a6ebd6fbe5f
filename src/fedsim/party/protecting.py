"""The job's words for protection as mechanisms, each with this party's own secret."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fedsim.data.columns import number
from fedsim.digest import arrays_digest
from fedsim.linkage.encoding import NumericFilter
from fedsim.linkage.secret_file import own_secret
from fedsim.party.job import SecondaryTerms
from fedsim.party.protection import CutTerms
from fedsim.privacy.keyed import BLOCK_KEY_BYTES, SECRET_BYTES, WORD, random_words, subkey
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim.protocol.cut_noise import CutNoise
from fedsim.types import Floats

SECRET = "secret"  # noqa: S105 - the name of a file
DRAWS = ("direction", "step")


def secret_seed(secret: bytes, seed: int) -> int:
    """A seed that nobody else can know, for every seed of a job another one."""
    return int.from_bytes(subkey(secret, f"weights of seed {seed}", 8), "big") >> 1


def frame_digest(frame: pl.DataFrame) -> str:
    """Stands for the cells of a table, and stays in the party's own folder."""
    text = frame.select(pl.all().cast(pl.String)).write_csv()
    return arrays_digest(np.frombuffer(text.encode(), np.uint8))


def cut_noise(terms: CutTerms | None, folder: Path) -> CutNoise | None:
    """Clip and noise for what this party sends over the cut."""
    return None if terms is None else noise_of(terms, own_secret(folder / SECRET))


def noise_of(terms: CutTerms | None, secret: bytes) -> CutNoise | None:
    """The same, from a secret that is at hand."""
    return None if terms is None else CutNoise(terms.clip, terms.noise, secret)


def blurred(identifiers: pl.DataFrame, terms: SecondaryTerms, folder: Path, table: str) -> pl.DataFrame:
    """Identifiers whose places have moved; the same records move to the same places again.

    A place that left the range of its encoding is brought back to the edge, which costs no privacy.
    """
    return identifiers if terms.blur is None else moved(identifiers, terms, own_secret(folder / SECRET), table)


def moved(identifiers: pl.DataFrame, terms: SecondaryTerms, secret: bytes, table: str) -> pl.DataFrame:
    """The same, by a secret that is at hand.

    A place moves to where it moved before, in whichever record and table it stands: two draws would average out. Two
    lists with blurs of their own draw apart: two scales of one draw would reveal the place.
    """
    blur = terms.blur
    if blur is None:
        return identifiers
    columns = [blur.latitude, blur.longitude]
    places = np.column_stack([number(identifiers[name], table=table).to_numpy() for name in columns]).astype(np.float64)
    chance = np.column_stack([_chance(secret, f"{draw} of blur {blur.epsilon_per_km!r}", places) for draw in DRAWS])
    elsewhere = PlanarLaplace(blur.epsilon).moved(places, chance)
    inside = [_inside(elsewhere[:, axis], terms, name) for axis, name in enumerate(columns)]
    return identifiers.with_columns(pl.Series(name, values) for name, values in zip(columns, inside, strict=True))


def flips(identifiers: pl.DataFrame, folder: Path) -> np.random.Generator:
    """What flips bits of filters: the same records together flip alike again, or draws would average out."""
    seed = subkey(own_secret(folder / SECRET), f"bits of {frame_digest(identifiers)}", SECRET_BYTES)
    return np.random.default_rng(int.from_bytes(seed, "big"))


def _chance(secret: bytes, purpose: str, places: Floats) -> Floats:
    """A number from 0 to 1 for every place, which nobody foresees without the secret."""
    blocks = np.ascontiguousarray(places + 0.0).view(WORD)  # a zero with a sign is the same place
    return np.asarray((random_words(subkey(secret, purpose, BLOCK_KEY_BYTES), blocks) >> np.uint64(11)) * 2.0**-53)


def _inside(values: Floats, terms: SecondaryTerms, column: str) -> Floats:
    """Values within what the schema encodes, where it encodes them as numbers."""
    for field in terms.encoding.fields:
        if field.column == column and isinstance(field.encoding, NumericFilter):
            return np.clip(values, field.encoding.low, field.encoding.high)
    return values
