"""The primary's own places, shaded by how good their partners are; drawn only where their owner asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from fedsim.data.columns import number
from fedsim.errors import SettingError
from fedsim.linkage.blind_file import load_delivery
from fedsim.party.own_columns import identifiers_for
from fedsim.party.party_file import PartyFile
from fedsim.party.protection import place_columns
from fedsim.report.figure import Figure
from fedsim.report.own_frame import own_frame
from fedsim.report.places import places_figure
from fedsim.report.run import Run


def map_figures(run: Run, own: PartyFile) -> list[Figure]:
    """A map for every secondary that is linked by latitude and longitude."""
    found = list(_figures(run, own, own_frame(run, own)))
    if not found:
        raise SettingError(
            f"no secondary of job '{run.job.name}' is linked by latitude and longitude, or places are too few to show; "
            "leave the map out"
        )
    return found


def _figures(run: Run, own: PartyFile, frame: pl.DataFrame) -> Iterator[Figure]:
    for name in run.job.secondaries:
        axes = _axes(run, own, name)
        if not axes:
            continue
        links = load_delivery(run.folder / "lists" / f"{name}.safetensors")
        figure = places_figure(
            np.column_stack([number(frame[axis], table=str(own.party)).to_numpy() for axis in axes]),
            links.similarity[:, 0].astype(np.float64),
            title=f"Where the nearest partner is similar: {name}",
            caption="The primary's records in cells, shaded by the median similarity of their best partner.",
            shaded="median similarity",
        )
        if figure is not None:
            yield figure


def _axes(run: Run, own: PartyFile, secondary: str) -> list[str]:
    """The columns of latitude and longitude, where these link."""
    named = identifiers_for(run.job, own, secondary)
    return [named[agreed] for agreed in place_columns(list(named)) or ()]
