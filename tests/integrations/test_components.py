"""The components that travel with a job to NVFlare's server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job
from fedsim_nvflare import FedSimRecipe

pytestmark = pytest.mark.filterwarnings("default")  # NVFlare's own warnings are not ours to fix


def test_the_server_needs_no_fedsim(tmp_path):
    place = create_local_job(tmp_path / "job")
    FedSimRecipe(place.job_path, {name: place.path(name) for name in (NOTARY, RENTALS, CITY)}).export(str(tmp_path))
    code = """
import sys
sys.path = [path for path in sys.path if not path.endswith("/src")] + [sys.argv[1]]
import fedsim_nvflare.components
assert "fedsim" not in sys.modules
"""
    custom = tmp_path / "flats" / "app_server" / "custom"
    subprocess.run([sys.executable, "-I", "-c", code, custom], check=True)
