"""What a person finds by ``dir(fedsim)`` and the completion of a notebook."""

import subprocess
import sys

import fedsim


def test_dir_lists_the_public_api_and_nothing_else():
    assert dir(fedsim) == sorted(fedsim.__all__)
    assert all(getattr(fedsim, name) is not None for name in dir(fedsim))
    assert dir(fedsim) == sorted(fedsim.__all__)  # also after all modules have been imported


def test_listing_the_public_api_imports_nothing_that_takes_long():
    code = "import sys, fedsim; dir(fedsim); print({'torch', 'numba', 'polars'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
