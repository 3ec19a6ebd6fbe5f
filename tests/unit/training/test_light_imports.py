"""Long experiments run on machines that have torch and numpy and little else."""

from __future__ import annotations

import subprocess
import sys

HEAVY = "numba", "polars", "safetensors", "scipy", "sklearn", "rich", "pandas", "typer"
SCRIPT = f"""
import sys
import fedsim.splitnn, fedsim.training, fedsim.contribution.rungs, fedsim_lab.worker_pool
print([name for name in {HEAVY!r} if name in sys.modules])
import fedsim.runtime.primary, fedsim.runtime.secondary
print([name for name in ("numba", "scipy.optimize", "sklearn", "pandas") if name in sys.modules])
"""


def test_training_needs_torch_and_numpy_alone_and_parties_that_do_not_link_no_compiler():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[:2] == ["[]", "[]"]
