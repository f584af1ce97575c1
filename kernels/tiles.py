"""Tiles: the one inner loop of the packed decoder, as LLVM code that numba's functions call.

A tile is 16 outputs of a matrix, stored so that one vector register holds the same place of all 16. The loop
keeps the sums of up to eight rows in registers while the tile's weights stream past once. A row's sum is built
in the same order whatever rows stand beside it, so the kernel is row-invariant by construction, in every
format (`Format`). Byte layouts of a tile, by format:

====  =========================================================================================
F32   for each input: 16 float32
BF16  for each input: 16 bfloat16, widened when read
F16   for each input: 16 float16, widened when read (keys and values)
U8    for each group of 32 inputs: 16 float16 scales; 8 blocks of [16 outputs][4 inputs] codes,
      which stand for scale * (code - 128)
U4    for each group of 32 inputs: 16 float16 scales, 16 float16 minima; 4 blocks of
      [16 outputs][4 inputs] codes, block b + 4 in the high halves of block b's bytes; a code
      stands for scale * code + minimum
====  =========================================================================================

Rows meet U8 and U4 as signed bytes with one float32 scale per group of 32 (`grimboost.kernels.rows.quantize`):
sums of integers are exact in any order, and each group's is then scaled once. On processors with AVX-512 VNNI
the products are single instructions; elsewhere LLVM makes plain vector code of the same integers.

It knows no model and no threads.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


class Format(IntEnum):
    """How weights, keys and values lie in memory."""

    F32 = 0
    BF16 = 1
    F16 = 2
    U8 = 3
    U4 = 4


LANES = 16
"""Outputs of a tile."""

GROUP = 32
"""Inputs that share a scale."""

BLOCK = 8
"""Rows that stand side by side where rows are rounded to bytes."""

STEP = 4
"""Inputs per turn of the loop in formats without groups."""

BYTES_PER_STEP = {
    Format.F32: 64 * STEP,
    Format.BF16: 32 * STEP,
    Format.F16: 32 * STEP,
    Format.U8: 544,
    Format.U4: 320,
}
"""Bytes that one turn of the loop reads of a tile: `STEP` inputs, or a group."""

QUANTIZED = (Format.U8, Format.U4)

_i8, _i16, _i32, _i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_f16, _f32 = ir.HalfType(), ir.FloatType()
_HAS_VNNI = bool(llvm.get_host_cpu_features().get("avx512vnni"))


def tile_product(rows: int) -> Any:
    """An intrinsic `f(format, weights, x, x_stride, scales, sums, steps, out, out_stride, add)` for so many rows.

    All arguments are integers: addresses, strides between rows in bytes, the number of loop turns, and whether
    `out` (float32, 16 per row) is added to. x: float32 rows. Of the quantized formats, `BLOCK` rows side by
    side (constant distances cost no registers): x: signed bytes [group][8 rows][32]; `scales`: float32
    [group][8 rows]; `sums`: likewise, int32 -128 * sum(x) for U8, float32 scale * sum(x) for U4. `x_stride`
    is unused then, and `scales` and `sums` are unused otherwise.
    """

    @intrinsic
    def product(_typing, _format, _weights, _x, _x_stride, _scales, _sums, _steps, _out, _out_stride, _add):
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            builder.call(_choice(builder.module, rows), arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return product


def _choice(module: Any, rows: int) -> Any:
    """The LLVM function that calls the loop of the format that it is told."""
    signature = ir.FunctionType(ir.VoidType(), [_i64] * 10)
    function = cgutils.get_or_insert_function(module, signature, f"grimboost_tile_{rows}")
    if function.is_declaration:
        function.linkage = "internal"
        b = ir.IRBuilder(function.append_basic_block("entry"))
        end = function.append_basic_block("end")
        switch = b.switch(function.args[0], end)
        for format in Format:
            block = function.append_basic_block(format.name.lower())
            switch.add_case(_i64(int(format)), block)
            b.position_at_end(block)
            b.call(_Loop(module, format, rows).function, function.args[1:])
            b.branch(end)
        b.position_at_end(end)
        b.ret_void()
    return function


def _vector(element: Any, count: int = LANES) -> Any:
    return ir.VectorType(element, count)


class _Loop:
    """One LLVM function: the loop over a tile's inputs for a fixed number of rows."""

    def __init__(self, module: Any, format: Format, rows: int) -> None:
        self.format, self.rows = format, rows
        signature = ir.FunctionType(ir.VoidType(), [_i64] * 9)
        name = f"grimboost_tile_{format.name.lower()}_{rows}"
        self.function = cgutils.get_or_insert_function(module, signature, name)
        if self.function.is_declaration:
            self.function.linkage = "internal"
            self.function.attributes.add("noinline")
            self._emit()

    def _emit(self) -> None:
        entry, loop, done = (self.function.append_basic_block(name) for name in ("entry", "loop", "done"))
        b = self.b = ir.IRBuilder(entry)
        weights, x, x_stride, scales, sums, steps, out, out_stride, add = self.function.args
        self.weights = self._pointer(weights)
        self.x = [self._pointer(x)] if self.format in QUANTIZED else self._row_pointers(x, x_stride)
        self.scales, self.sums = self._pointer(scales), self._pointer(sums)
        self.out = self._row_pointers(out, out_stride)
        b.branch(loop)
        b.position_at_end(loop)
        step = b.phi(_i64)
        step.add_incoming(_i64(0), entry)
        before = [b.phi(_vector(_f32)) for _ in range(self.rows)]
        after = (self._group if self.format in QUANTIZED else self._plain)(step, list(before))
        following = b.add(step, _i64(1))
        step.add_incoming(following, loop)
        for old, new in zip(before, after, strict=True):
            old.add_incoming(ir.Constant(_vector(_f32), [0.0] * LANES), entry)
            old.add_incoming(new, loop)
        b.cbranch(b.icmp_signed("<", following, steps), loop, done)
        b.position_at_end(done)
        with b.if_else(b.icmp_signed("!=", add, _i64(0))) as (adding, storing):
            with adding:
                for pointer, value in zip(self.out, after, strict=True):
                    self._store(b.fadd(self._load(pointer, 0, _vector(_f32), 4), value), pointer)
            with storing:
                for pointer, value in zip(self.out, after, strict=True):
                    self._store(value, pointer)
        b.ret_void()

    def _plain(self, step: Any, sums: list[Any]) -> list[Any]:
        """`STEP` inputs of a format without groups."""
        b = self.b
        size = BYTES_PER_STEP[self.format] // STEP
        weights = b.gep(self.weights, [b.mul(step, _i64(size * STEP))])
        offset = b.mul(step, _i64(4 * STEP))
        rows = [b.gep(pointer, [offset]) for pointer in self.x]
        for place in range(STEP):
            weight = self._widened(weights, size * place)
            for row, pointer in enumerate(rows):
                value = self._splat(self._load(pointer, 4 * place, _f32, 4))
                sums[row] = self._fma(weight, value, sums[row])
        return sums

    def _widened(self, pointer: Any, offset: int) -> Any:
        if self.format == Format.F32:
            return self._load(pointer, offset, _vector(_f32), 4)
        if self.format == Format.F16:
            return self.b.fpext(self._load(pointer, offset, _vector(_f16), 2), _vector(_f32))
        bits = self.b.zext(self._load(pointer, offset, _vector(_i16), 2), _vector(_i32))
        return self.b.bitcast(self.b.shl(bits, self._splat(_i32(16))), _vector(_f32))

    def _group(self, step: Any, sums: list[Any]) -> list[Any]:
        """One group of a quantized format: 8 times 4 inputs in integers, then the scales."""
        b = self.b
        base = b.gep(self.weights, [b.mul(step, _i64(BYTES_PER_STEP[self.format]))])
        scale, minimum = self._half(base, 0), None
        if self.format == Format.U4:
            minimum = self._half(base, 32)
            packed = [self._load(base, 64 + 64 * block, _vector(_i8, 64), 1) for block in range(4)]
            codes = [b.and_(both, self._splat(_i8(15), 64)) for both in packed]
            codes += [b.lshr(both, self._splat(_i8(4), 64)) for both in packed]
        else:
            codes = [self._load(base, 32 + 64 * block, _vector(_i8, 64), 1) for block in range(8)]
        x = b.gep(self.x[0], [b.mul(step, _i64(BLOCK * GROUP))])
        place = b.mul(step, _i64(4 * BLOCK))
        row_scales, row_sums = b.gep(self.scales, [place]), b.gep(self.sums, [place])
        for row in range(self.rows):
            if minimum is None:  # codes are 128 too large: begin with what that adds
                whole = self._splat(self._load(row_sums, 4 * row, _i32, 4))
            else:
                whole = ir.Constant(_vector(_i32), [0] * LANES)
            for block in range(8):
                four = self._splat(self._load(x, GROUP * row + 4 * block, _i32, 1))
                whole = self._dot(whole, codes[block], b.bitcast(four, _vector(_i8, 64)))
            both = b.fmul(scale, self._splat(self._load(row_scales, 4 * row, _f32, 4)))
            sums[row] = self._fma(b.sitofp(whole, _vector(_f32)), both, sums[row])
            if minimum is not None:
                sums[row] = self._fma(minimum, self._splat(self._load(row_sums, 4 * row, _f32, 4)), sums[row])
        return sums

    def _dot(self, sums: Any, codes: Any, x: Any) -> Any:
        """sums[lane] += codes[lane, 0:4] . x[lane, 0:4]; unsigned times signed bytes, exact."""
        b = self.b
        if _HAS_VNNI:
            arguments = [_vector(_i32), _vector(_i8, 64), _vector(_i8, 64)]
            signature = ir.FunctionType(_vector(_i32), arguments)
            name = "llvm.x86.avx512.vpdpbusd.512"
            return b.call(cgutils.get_or_insert_function(b.module, signature, name), [sums, codes, x])
        codes, x = b.bitcast(codes, _vector(_i32)), b.bitcast(x, _vector(_i32))
        for byte in range(4):
            code = b.and_(b.lshr(codes, self._splat(_i32(8 * byte))), self._splat(_i32(255)))
            value = b.ashr(b.shl(x, self._splat(_i32(24 - 8 * byte))), self._splat(_i32(24)))
            sums = b.add(sums, b.mul(code, value))
        return sums

    # ------------------------------------------------------------ small words of LLVM

    def _pointer(self, address: Any) -> Any:
        return self.b.inttoptr(address, _i8.as_pointer())

    def _row_pointers(self, address: Any, stride: Any) -> list[Any]:
        start = self._pointer(address)
        return [self.b.gep(start, [self.b.mul(stride, _i64(row))]) for row in range(self.rows)]

    def _load(self, pointer: Any, offset: int, kind: Any, alignment: int) -> Any:
        place = self.b.bitcast(self.b.gep(pointer, [_i64(offset)]), kind.as_pointer())
        value = self.b.load(place)
        value.align = alignment
        return value

    def _store(self, value: Any, pointer: Any) -> None:
        self.b.store(value, self.b.bitcast(pointer, value.type.as_pointer())).align = 4

    def _half(self, pointer: Any, offset: int) -> Any:
        return self.b.fpext(self._load(pointer, offset, _vector(_f16), 2), _vector(_f32))

    def _splat(self, value: Any, count: int = LANES) -> Any:
        empty = ir.Constant(_vector(value.type, count), ir.Undefined)
        first = self.b.insert_element(empty, value, _i32(0))
        return self.b.shuffle_vector(first, empty, ir.Constant(_vector(_i32, count), [0] * count))

    def _fma(self, x: Any, y: Any, z: Any) -> Any:
        signature = ir.FunctionType(z.type, [z.type] * 3)
        return self.b.call(cgutils.get_or_insert_function(self.b.module, signature, "llvm.fma.v16f32"), [x, y, z])


def _one_value(kind: Any, result: Any, generate: Callable[[Any, Any], Any]) -> Any:
    """An intrinsic from one integer address to one value."""

    @intrinsic
    def read(_typing, _address):
        def body(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()))
            value.align = 1
            return generate(builder, value)

        return result(types.int64), body

    return read


read_half = _one_value(_f16, types.float32, lambda b, value: b.fpext(value, _f32))
"""The float16 at an address."""

read_float = _one_value(_f32, types.float32, lambda _b, value: value)
"""The float32 at an address."""

read_bfloat = _one_value(
    _i16, types.float32, lambda b, value: b.bitcast(b.shl(b.zext(value, _i32), _i32(16)), _f32)
)
"""The bfloat16 at an address."""

read_byte = _one_value(_i8, types.int64, lambda b, value: b.zext(value, _i64))
"""The unsigned byte at an address."""


@intrinsic
def write_half(_typing, _address, _value):
    """Round a float32 to float16 and store it at an address; what float16 cannot hold becomes its largest number.

    An infinite value would not stay where it is: 0 times it is NaN, and rows that do not see it multiply by 0.
    """

    def body(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _f16.as_pointer())
        value = arguments[1]
        for name, bound in (("llvm.minnum.f32", 65504.0), ("llvm.maxnum.f32", -65504.0)):  # NaN becomes a bound
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_f32, [_f32, _f32]), name)
            value = builder.call(function, [value, ir.Constant(_f32, bound)])
        builder.store(builder.fptrunc(value, _f16), pointer).align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), body


@intrinsic
def write_float(_typing, _address, _value):
    """Store a float32 at an address."""

    def body(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _f32.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), body


@intrinsic
def float_of_bits(_typing, _bits):
    """The float32 with these 32 bits."""

    def body(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _f32)

    return types.float32(types.int32), body
