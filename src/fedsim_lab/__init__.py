"""Research code: the paper's datasets, studies, sweeps and benchmarks. Depends on fedsim, never the reverse.

Importing this package registers the commands of ``fedsim lab``, the preset ``paper``, the presets ``paper:house``,
``paper:taxi`` and so on, with the paper's network sizes for each dataset, and variants of FedSim: the paper's
ablations, its sort by weight and its mean merge gate.
"""

from fedsim.registry import COMMANDS, FEDSIM_VARIANTS, METRICS, PRESETS

PRESETS.register(
    "paper", "fedsim_lab.paper_preset:PAPER", summary="Networks, optimiser and sizes of the paper, for comparison."
)
for _dataset in ("house", "taxi", "hdb", "game", "company", "boone", "sklearn", "frog"):
    PRESETS.register(
        f"paper:{_dataset}",
        f"fedsim_lab.paper_sizes:{_dataset.upper()}.preset",
        summary=f"The paper's network sizes and hyperparameters for its dataset {_dataset}.",
        in_jobs=False,
    )
for _variant in ("without-weight", "without-sort", "without-cnn", "by-weight", "mean-merge"):
    _function = _variant.replace("-", "_")
    FEDSIM_VARIANTS.register(f"fedsim-{_variant}", f"fedsim_lab.ablations:{_function}", in_jobs=False)
METRICS.register(
    "rank-hamming",
    "fedsim_lab.rank_filters:RANK_HAMMING",
    summary="Hamming distance of numeric filters, from their ranks; for previews.",
    in_jobs=False,
    unit="bits",
    counts_bits=True,
)
COMMANDS.register("lab", "fedsim_lab.cli.commands:app")
