"""Assert the type, code and details of an error."""

from __future__ import annotations

from contextlib import contextmanager

import pytest


@contextmanager
def raises(kind, code, **details):
    """Check that the block raises an error of this type with this code and these details."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code
    assert {name: getattr(caught.value, name) for name in details} == details
