"""What keeps kernels from being compiled is reported with a way out."""

from __future__ import annotations

import pytest

from fedsim.errors import DeviceError
from fedsim_lab import nvrtc


def test_source_that_does_not_compile_is_reported():
    class Compiler:
        def __getitem__(self, name):
            return lambda program, *rest: 0

        def __getattr__(self, name):
            return lambda *given: int(name == "nvrtcCompileProgram")

    with pytest.raises(DeviceError) as caught:
        nvrtc.compile_source(Compiler(), "", [])
    assert caught.value.code == "gpu-kernel"


def test_a_compiler_of_an_unknown_version_is_reported():
    with pytest.raises(DeviceError) as caught:
        nvrtc.load_compiler("999.0")
    assert caught.value.code == "no-nvrtc"
