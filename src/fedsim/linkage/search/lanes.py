"""Several queries in one machine vector: the building blocks of the exact kernels.

A *lane* holds one query. A kernel walks once over all candidates and compares each with every lane of its group at the
same time, so a candidate is read once for 32 to 128 queries and the arithmetic runs at the width of the machine.
numba has no vector type, so the blocks are written in LLVM's language; LLVM maps them to AVX-512, AVX2 or NEON.

Letters: L lanes of one group, B bits of a lane, L * B = 2048.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

VECTOR_BITS = 2048  # four AVX-512 registers: enough independent work to hide latency, few enough not to spill

I64 = ir.IntType(64)
ZERO64, ONE64 = ir.Constant(I64, 0), ir.Constant(I64, 1)


def lanes_of(bits: int) -> int:
    """Number of queries that share one group of lanes with this many bits each.

    >>> [lanes_of(bits) for bits in (16, 32, 64)]
    [128, 64, 32]
    """
    return VECTOR_BITS // bits


class Lanes:
    """Writes vector instructions for lanes of ``bits`` bits at the builder's position."""

    def __init__(self, context: Any, builder: Any, bits: int) -> None:
        self.context, self.builder, self.bits = context, builder, bits
        self.count = lanes_of(bits)
        self.scalar = ir.IntType(bits)
        self.vector = ir.VectorType(self.scalar, self.count)
        self.width = ir.Constant(I64, self.count)

    def constant(self, value: int) -> Any:
        return ir.Constant(self.vector, [value] * self.count)

    def complement(self, value: Any) -> Any:
        return self.builder.xor(value, self.constant((1 << self.bits) - 1))

    def spread(self, value: Any) -> Any:
        """The same 64-bit scalar in every lane."""
        narrow = self.builder.trunc(value, self.scalar) if self.bits < 64 else value
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, narrow, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def call(self, name: str, *arguments: Any) -> Any:
        """One of LLVM's own vector functions, such as ``ctpop`` or ``smin``."""
        kind = ir.FunctionType(self.vector, [self.vector] * len(arguments))
        full_name = f"llvm.{name}.v{self.count}i{self.bits}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full_name), arguments)

    def variable(self, value: Any) -> Any:
        """A place in a register that a loop may change."""
        place = cgutils.alloca_once(self.builder, self.vector)
        self.builder.store(value, place)
        return place

    def pointer(self, array: Array, offset: Any) -> Any:
        start = self.builder.gep(array.data, [offset])
        return self.builder.bitcast(start, self.vector.as_pointer())

    def load(self, array: Array, offset: Any) -> Any:
        return self.builder.load(self.pointer(array, offset), align=self.bits // 8)

    def store(self, value: Any, array: Array, offset: Any) -> None:
        self.builder.store(value, self.pointer(array, offset), align=self.bits // 8)

    def any_within(self, distance: Any, limit: Any) -> Any:
        """True if at least one lane's distance is at most its limit."""
        flags = self.builder.icmp_signed("<=", distance, limit)
        mask = ir.IntType(self.count)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(flags, mask), ir.Constant(mask, 0))


class Array:
    """The data pointer of a C-ordered numba array and scalar reads from it."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.builder = builder
        array = context.make_array(kind)(context, builder, value)
        self.data = array.data
        self.length = builder.extract_value(array.shape, 0)

    def scalar(self, index: Any) -> Any:
        """The element as 64 bits, zero-extended."""
        value = self.builder.load(self.builder.gep(self.data, [index]))
        return self.builder.zext(value, I64) if value.type.width < 64 else value


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Number of ones in one 64-bit word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(I64, [I64])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.ctpop.i64"), arguments)

    return types.int64(types.uint64), generate
