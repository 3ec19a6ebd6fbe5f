"""One thread per test process: they run side by side, and waiting OpenMP threads would slow each other down."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# In continuous integration the same examples every time: a failure there is the change's own.
settings.register_profile("fedsim", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedsim")
