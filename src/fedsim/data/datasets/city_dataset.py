"""The generated city as a dataset."""

from __future__ import annotations

from fedsim.data.datasets.dataset import About, Dataset, Link, Secondary, Table, Task
from fedsim.data.datasets.known_city import LABEL, OWN, PLACE, RENTALS_EACH, RENTALS_K, SCHOOLS_K, KnownCity

ABOUT = About(
    name="city",
    title="generated: flats, rentals, schools",
    task=Task.REGRESSION,
    measure="rmse",
    unit="1000 S$",
    records=(4_000, RENTALS_EACH * 4_000, 4_000),
    note="not in the paper",
)


def city_dataset(city: KnownCity) -> Dataset:
    """The generated city in the form of all other datasets; rentals first."""
    parties = {"rentals": (city.rentals, RENTALS_K), "schools": (city.schools, SCHOOLS_K)}
    return Dataset(
        about=ABOUT,
        primary=Table(city.flats, OWN),
        label=LABEL,
        secondaries=tuple(
            Secondary(
                name,
                Table(frame, tuple(column for column in frame.columns if column not in PLACE)),
                Link(PLACE, PLACE, "great-circle", k),
            )
            for name, (frame, k) in parties.items()
        ),
        truth=city.truth,
    )
