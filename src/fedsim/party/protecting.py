"""The job's words for protection as mechanisms, each with this party's own secret."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fedsim.data.columns import number
from fedsim.linkage.secret_file import own_secret
from fedsim.party.job import Blur, CutTerms
from fedsim.privacy.keyed import SECRET_BYTES, subkey
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim.protocol.cut_noise import CutNoise
from fedsim.protocol.digests import arrays_digest

SECRET = "secret"  # noqa: S105 - the name of a file
METRES_PER_KM = 1000.0


def frame_digest(frame: pl.DataFrame) -> str:
    """Stands for the cells of a table, and stays in the party's own folder."""
    text = frame.select(pl.all().cast(pl.String)).write_csv()
    return arrays_digest(np.frombuffer(text.encode(), np.uint8))


def cut_noise(terms: CutTerms | None, folder: Path) -> CutNoise | None:
    """Clip and noise for what this party sends over the cut."""
    return None if terms is None else CutNoise(terms.clip, terms.noise, own_secret(folder / SECRET))


def blurred(identifiers: pl.DataFrame, blur: Blur | None, folder: Path, table: str) -> pl.DataFrame:
    """Identifiers whose places have moved; the same records move to the same places again."""
    if blur is None:
        return identifiers
    columns = [blur.latitude, blur.longitude]
    places = np.column_stack([number(identifiers[name], table=table).to_numpy() for name in columns])
    seed = subkey(own_secret(folder / SECRET), f"blur of {frame_digest(identifiers)}", SECRET_BYTES)
    rng = np.random.default_rng(int.from_bytes(seed, "big"))
    moved = PlanarLaplace(blur.epsilon_per_km / METRES_PER_KM).apply(places, rng)
    return identifiers.with_columns(pl.Series(name, moved[:, axis]) for axis, name in enumerate(columns))
