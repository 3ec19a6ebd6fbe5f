"""Long experiments run on machines that have torch and numpy and little else."""

from __future__ import annotations

import subprocess
import sys

HEAVY = "numba", "polars", "scipy", "sklearn", "rich", "pandas", "typer"
SCRIPT = f"""
import sys
import fedsim.splitnn, fedsim.training
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_networks_and_training_import_with_torch_and_numpy_alone():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
