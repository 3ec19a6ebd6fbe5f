"""The primary's own places, shaded by how good their partners are; drawn only where their owner asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.data.columns import number
from fedsim.data.readers import read_table
from fedsim.errors import InputError, SettingError
from fedsim.linkage.blind_file import load_delivery
from fedsim.party.own_columns import identifiers_for
from fedsim.party.party_file import PartyFile
from fedsim.party.protection import LATITUDES, LONGITUDES
from fedsim.report.figure import Figure
from fedsim.report.places import places_figure
from fedsim.report.run import Run


def map_figures(run: Run, own: PartyFile) -> list[Figure]:
    """A map for every secondary that is linked by latitude and longitude."""
    if own.name != run.record.party or own.data is None:
        raise SettingError(f"a map takes the file of '{run.record.party}', the primary of this run; name that file")
    found = list(_figures(run, own))
    if not found:
        raise SettingError(
            f"no secondary of job '{run.job.name}' is linked by latitude and longitude, or places are too few to show; "
            "leave the map out"
        )
    return found


def _figures(run: Run, own: PartyFile) -> Iterator[Figure]:
    for name in run.job.secondaries:
        places = _places(run, own, name)
        if places is None:
            continue
        links = load_delivery(run.folder / "lists" / f"{name}.safetensors")
        if len(links) != len(places):
            raise InputError(
                f"the table of '{own.name}' has {len(places)} records, the run was made with {len(links)}; bring back "
                "the table of then"
            )
        figure = places_figure(
            places,
            links.similarity[:, 0].astype(np.float64),
            title=f"Where the nearest partner is similar: {name}",
            caption="The primary's records in cells, shaded by the median similarity of their best partner.",
            shaded="median similarity",
        )
        if figure is not None:
            yield figure


def _places(run: Run, own: PartyFile, secondary: str) -> np.ndarray | None:
    """Latitude and longitude of every record, where these link."""
    named = identifiers_for(run.job, own, secondary)
    axes = [next((column for word, column in named.items() if word in words), "") for words in (LATITUDES, LONGITUDES)]
    if not all(axes) or own.data is None:
        return None
    frame = read_table(own.data.source, separator=own.data.separator, option="separator in the party file")
    return np.column_stack([number(frame[axis], table=str(own.party)).to_numpy() for axis in axes])
