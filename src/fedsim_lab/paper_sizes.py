"""Layer sizes and hyperparameters of the paper's eight data sets.

The layer sizes reproduce the parameter counts in the paper's table to the last digit. The script for ``company`` is not
public; its sizes are the only ones in a wide grid that reproduce the counts.
"""

from dataclasses import dataclass, replace

from fedsim.splitnn.gates import MergeGate
from fedsim.splitnn.layers import Local
from fedsim.splitnn.methods import FedSim
from fedsim.splitnn.secondary_model import Preset
from fedsim.training.config import Config
from fedsim_lab.ablations import MeanMerge
from fedsim_lab.paper_networks import ConvolutionMerge
from fedsim_lab.paper_preset import Lamb


@dataclass(frozen=True)
class PaperData:
    """The sizes of one of the paper's data sets; columns do not include the identifiers."""

    columns: tuple[int, int]  # primary, secondary
    records: tuple[int, int]  # primary, secondary
    partners: int
    classes: int  # 1: regression
    config: Config

    @property
    def preset(self) -> Preset:
        """Return these sizes as a preset; methods other than FedSim use its local networks and optimiser."""
        return Preset(
            self.config.local,
            self.config.optimiser,
            lambda method: self.config if method is None else replace(self.config, method=method),
            self.config.epochs,
            self.config.batch,
        )


def _config(
    sizes: tuple[int, int, int], merge: MergeGate, rate: float, decay: float, *, batch: int, epochs: int
) -> Config:
    hidden, cut, outputs = sizes
    return Config(
        method=FedSim(hidden=100, outputs=outputs, merge=merge),
        local=Local(hidden=(hidden,), cut=cut),
        optimiser=Lamb(rate=rate, decay=decay),
        batch=batch,
        epochs=epochs,
    )


def _merge(channels: int, kernel: int, hidden: int, dropout: float) -> ConvolutionMerge:
    return ConvolutionMerge(channels, kernel, hidden, dropout)


HOUSE = PaperData(
    (53, 23),
    (141_050, 27_827),
    100,
    1,
    _config((200, 100, 10), _merge(8, 7, 400, 0.3), 1e-3, 1e-5, batch=128, epochs=100),
)
TAXI = PaperData(
    (960, 2),
    (200_000, 100_000),
    50,
    1,
    _config((100, 50, 10), _merge(8, 5, 400, 0.3), 3e-4, 1e-5, batch=64, epochs=20),
)
HDB = PaperData(
    (68, 8),
    (92_095, 165),
    50,
    1,
    _config((200, 100, 10), _merge(8, 7, 400, 0.2), 1e-3, 1e-4, batch=128, epochs=100),
)
GAME = PaperData(
    (37, 85),
    (26_987, 439_999),
    50,
    2,
    _config((100, 50, 10), _merge(8, 7, 400, 0.7), 1e-3, 1e-5, batch=32, epochs=50),
)
COMPANY = PaperData(
    (90, 156),
    (77_225, 220_583),
    50,
    1,
    _config((100, 50, 10), _merge(4, 7, 200, 0.3), 1e-3, 1e-5, batch=32, epochs=50),
)
BOONE = PaperData(
    (10, 10),
    (130_064, 130_064),
    100,
    2,
    _config((100, 50, 3), _merge(4, 7, 400, 0.7), 1e-3, 1e-5, batch=64, epochs=50),
)
SKLEARN = PaperData(
    (45, 45), (60_000, 60_000), 100, 2, _config((100, 50, 1), MeanMerge(), 1e-3, 1e-4, batch=32, epochs=50)
)
FROG = PaperData((3, 3), (7_195, 7_195), 100, 10, _config((100, 50, 10), MeanMerge(), 3e-3, 1e-3, batch=32, epochs=100))

PAPER_DATA = {
    "house": HOUSE,
    "taxi": TAXI,
    "hdb": HDB,
    "game": GAME,
    "company": COMPANY,
    "boone": BOONE,
    "sklearn": SKLEARN,
    "frog": FROG,
}
