"""One thread per test process: they run side by side, and waiting OpenMP threads would slow each other down."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
