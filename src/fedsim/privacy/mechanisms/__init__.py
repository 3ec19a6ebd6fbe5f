"""What a party can do to what it gives away, each with its guarantee in one sentence."""

from fedsim.privacy.mechanisms.bits import FlippedBits
from fedsim.privacy.mechanisms.features import NoisyFeatures
from fedsim.privacy.mechanisms.links import DummyLinks, MinimumDegree
from fedsim.privacy.mechanisms.mechanism import Mechanism
from fedsim.privacy.mechanisms.places import PlanarLaplace
from fedsim.privacy.mechanisms.rows import ClipAndNoise
from fedsim.privacy.mechanisms.similarities import NoisySimilarities

__all__ = [
    "ClipAndNoise",
    "DummyLinks",
    "FlippedBits",
    "Mechanism",
    "MinimumDegree",
    "NoisyFeatures",
    "NoisySimilarities",
    "PlanarLaplace",
]
