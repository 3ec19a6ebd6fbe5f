"""Research: the paper's datasets, studies, sweeps and benchmarks. Depends on fedsim, never the reverse."""
