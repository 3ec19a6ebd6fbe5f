"""Research code: the paper's datasets, studies, sweeps and benchmarks. Depends on fedsim, never the reverse.

Importing this package registers the presets ``paper:house``, ``paper:taxi`` and so on, with the paper's network sizes
for each dataset, and the paper's ablations of FedSim.
"""

from fedsim.registry import FEDSIM_VARIANTS, PRESETS

for _dataset in ("house", "taxi", "hdb", "game", "company", "boone", "sklearn", "frog"):
    PRESETS.register(
        f"paper:{_dataset}",
        f"fedsim_lab.paper_sizes:{_dataset.upper()}.preset",
        summary=f"The paper's network sizes and hyperparameters for its dataset {_dataset}.",
        in_jobs=False,
    )
for _gate in ("weight", "sort", "cnn"):
    FEDSIM_VARIANTS.register(f"fedsim-without-{_gate}", f"fedsim_lab.ablations:without_{_gate}", in_jobs=False)
