"""Research: the paper's datasets, studies, sweeps and benchmarks. Depends on fedsim, never the reverse.

Importing this package registers the presets ``paper:house``, ``paper:taxi`` ... with the paper's sizes of each dataset.
"""

from __future__ import annotations

from fedsim.registry import PRESETS

for _dataset in ("house", "taxi", "hdb", "game", "company", "boone", "sklearn", "frog"):
    PRESETS.register(
        f"paper:{_dataset}",
        f"fedsim_lab.paper_sizes:{_dataset.upper()}.preset",
        summary=f"The paper's network sizes and hyperparameters for its dataset {_dataset}.",
        in_jobs=False,
    )
