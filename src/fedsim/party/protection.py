"""Protections that a job may lay over the noise on similarities, and the preset that combines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedsim.data.column_words import says_latitude, says_longitude, words_of
from fedsim.party.toml_file import Section, real

# What the preset stands for; docs/privacy-results.md has the measurements behind every figure.
FEATURES: Mapping[str, float] = {"noise": 4.0}
GRADIENTS: Mapping[str, float] = {"clip": 1e-6, "noise": 500.0}
TAU, SIGMA = 0.05, 0.4
EPSILON_PER_KM = 5.0
METRES_PER_KM = 1000.0


class Blur(Section):
    """Places moved at random before they are encoded (geo-indistinguishability)."""

    latitude: str = Field(description="The agreed identifier that is the latitude, in degrees.", examples=["lat"])
    longitude: str = Field(description="The agreed identifier that is the longitude, in degrees.", examples=["lon"])
    epsilon_per_km: Annotated[float, real(0, 1e6)] = Field(
        description="Odds between two places one kilometre apart grow at most by e to this, whatever is computed from "
        "the blurred place and however often; places move by 2000 / epsilon_per_km metres on average.",
        examples=[10],
    )

    @property
    def epsilon(self) -> float:
        """The same for one metre, as the mechanism takes it."""
        return self.epsilon_per_km / METRES_PER_KM


class CutTerms(Section):
    """Bounded length and noise for rows that cross the cut."""

    clip: Annotated[float, real(0, 1e6)] = Field(
        description="Rows longer than this are scaled down to it, so that noise can promise something.", examples=[1.0]
    )
    noise: Annotated[float, real(0, 1e6)] = Field(
        description="Standard deviation of the noise on every number, as a multiple of the clip.", examples=[0.5]
    )


class FeatureTerms(Section):
    """Noise on features before any network sees them."""

    noise: Annotated[float, real(0, 1e6)] = Field(
        description="Standard deviation of the noise on every number, as a multiple of its column's own; categories "
        "are replaced as often as leaves as little of them.",
        examples=[3.0],
    )


class Protection(Section):
    """What is laid on features, activations and gradients beside the noise on similarities."""

    preset: Literal["protected"] | None = Field(
        default=None,
        exclude=True,  # its settings stand in the job one by one, and so in its hash
        description="`protected` stands for the settings that our measurements recommend: noise on the "
        "features of secondaries, on gradients, on similarities and, where latitude and longitude link, blurred "
        "places. What the job says itself counts instead.",
        examples=["protected"],
    )

    features: FeatureTerms | None = Field(
        default=None,
        description="Noise on the features of secondaries, drawn once for a record: protects them from the primary, "
        "and does not wear out with the number of steps.",
    )
    activations: CutTerms | None = Field(
        default=None,
        description="Clip and noise on what secondaries send: protects their features from the primary.",
    )
    gradients: CutTerms | None = Field(
        default=None, description="Clip and noise on what the primary sends back: protects its labels."
    )

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, written: Any) -> Any:
        if isinstance(written, dict) and written.get("preset") == "protected":
            return {"features": dict(FEATURES), "gradients": dict(GRADIENTS), **written}
        return written


def protected(places: tuple[str, str] | None, *, whole_distances: bool) -> dict[str, Any]:
    """What the preset says about one list whose identifiers hold these places, or none."""
    noise = {"tau": TAU} if whole_distances else {"sigma": SIGMA}
    if places is None:
        return noise
    return {**noise, "blur": Blur(latitude=places[0], longitude=places[1], epsilon_per_km=EPSILON_PER_KM)}


def place_columns(columns: Sequence[str]) -> tuple[str, str] | None:
    """The columns that are called latitude and longitude, where there is one of each; names that end so come first.

    >>> place_columns(["homeLat", "homeLng", "area"]), place_columns(["lat", "lon", "lat_error"])
    (('homeLat', 'homeLng'), ('lat', 'lon'))
    >>> place_columns(["lat_start", "lon_start"]), place_columns(["home_lat", "work_lat", "lon"])
    (('lat_start', 'lon_start'), None)
    """
    latitude, longitude = (_only(columns, says) for says in (says_latitude, says_longitude))
    return (latitude, longitude) if latitude and longitude else None


def _only(columns: Sequence[str], says: Callable[[str], bool]) -> str | None:
    said = [column for column in columns if says(column)]
    best = [column for column in said if says(words_of(column)[-1])] or said
    return best[0] if len(best) == 1 else None
