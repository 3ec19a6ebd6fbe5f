"""Compile CUDA source with NVRTC, which the CUDA builds of torch contain, and launch it through the driver.

Neither a compiler nor CUDA's headers need to be installed.
"""

import ctypes
import struct
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsim.errors import DeviceError

MAX_SHARED_MEMORY_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_MEMORY_WITHOUT_ASKING = 48 * 1024


def load_compiler(cuda: str) -> ctypes.CDLL:
    """Return NVRTC of this CUDA version, such as ``"13.0"``."""
    major = cuda.split(".", maxsplit=1)[0]
    name = f"nvrtc64_{major}0_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{major}"
    packages = find_spec("nvidia")
    folders = [] if packages is None else packages.submodule_search_locations or []
    installed = [path for folder in folders for path in sorted(Path(folder).glob(f"*/*/{name}"))]
    try:
        for library in installed:
            for part in library.parent.glob("libnvrtc-builtins.so.*"):  # NVRTC looks for it by its name alone
                ctypes.CDLL(str(part))
        return ctypes.CDLL(str(installed[0]) if installed else name)
    except OSError:
        message = f"{name} was not found; reinstall torch with CUDA, or choose device cpu"
        raise DeviceError(message, code="no-nvrtc") from None


def compile_source(compiler: ctypes.CDLL, source: str, options: Sequence[str]) -> bytes:
    """Return the machine code of CUDA source."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    failed = compiler.nvrtcCompileProgram(program, len(options), words)
    take_size, take = ("ProgramLogSize", "ProgramLog") if failed else ("CUBINSize", "CUBIN")
    compiler[f"nvrtcGet{take_size}"](program, ctypes.byref(size))
    output = ctypes.create_string_buffer(size.value)
    compiler[f"nvrtcGet{take}"](program, output)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        log = output.value.decode(errors="replace").strip()
        raise DeviceError(f"the GPU kernels do not compile; choose device cpu. {log}", code="gpu-kernel")
    return output.raw


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        cause = text.value.decode() if text.value else status
        raise DeviceError(f"a GPU kernel failed ({cause}); choose device cpu", code="gpu-kernel")


class Module:
    """Compiled kernels in the current CUDA context."""

    def __init__(self, code: bytes) -> None:
        self.handle, self.code, self.functions = ctypes.c_void_p(), code, dict[str, ctypes.c_void_p]()
        _check(_driver().cuModuleLoadData(ctypes.byref(self.handle), code))

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        structures: Sequence[Sequence[Any]],
        *,
        shared: int,
        stream: int,
    ) -> None:
        """Start a kernel whose parameters are structures of tensors (passed as pointers) and 32-bit integers."""
        if name not in self.functions:
            function = ctypes.c_void_p()
            _check(_driver().cuModuleGetFunction(ctypes.byref(function), self.handle, name.encode()))
            self.functions[name] = function
        function = self.functions[name]
        if shared > SHARED_MEMORY_WITHOUT_ASKING:
            _check(_driver().cuFuncSetAttribute(function, MAX_SHARED_MEMORY_ATTRIBUTE, shared))
        packed = [ctypes.create_string_buffer(_pack(structure)) for structure in structures]
        pointers = (ctypes.c_void_p * len(packed))(*(ctypes.addressof(buffer) for buffer in packed))
        place = (function, *grid, 1, *block, 1, shared, ctypes.c_void_p(stream))
        _check(_driver().cuLaunchKernel(*place, pointers, None))


def _pack(structure: Sequence[Any]) -> bytes:
    """Return the bytes of a C structure, padded to whole pointers."""
    layout = "".join("i" if isinstance(field, int) else "P" for field in structure)
    values = [field if isinstance(field, int) else field.data_ptr() for field in structure]
    return struct.pack(f"@{layout}0P", *values)
