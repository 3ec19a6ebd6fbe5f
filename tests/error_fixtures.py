"""Assert the type and code of an error."""

from __future__ import annotations

from contextlib import contextmanager

import pytest


@contextmanager
def raises(kind, code):
    """Check that the block raises an error of this type with this code."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code
