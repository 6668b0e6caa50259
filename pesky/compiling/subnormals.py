"""Numbers below float32's normal range count as zero inside kernels.

Averages of vanishing gradients (a dead input's, a saturated softmax's) sink through the subnormal
range, where every operation costs the processor a hundred cycles and nothing is gained. On x86 the
processor can flush them to zero; elsewhere the two functions do nothing. The mode belongs to the
thread, so a kernel sets it when it is entered and puts it back when it is left.
"""

import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["flush_subnormals", "restore_mode"]

_IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
_FLUSH_RESULTS_AND_OPERANDS = 0x8040  # bits FTZ and DAZ of the control register MXCSR


def _access_mode(builder: Any, name: str, pointer: Any) -> None:
    byte_pointer = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte_pointer])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    builder.call(function, [builder.bitcast(pointer, byte_pointer)])


@intrinsic  # type: ignore[untyped-decorator]
def flush_subnormals(typing_context: Any) -> Any:
    """Set the mode; return the one before, for `restore_mode`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _IS_X86:
            return context.get_constant(types.uint32, 0)
        before = cgutils.alloca_once(builder, ir.IntType(32))
        _access_mode(builder, "llvm.x86.sse.stmxcsr", before)
        mode = builder.load(before)
        flushing = builder.or_(mode, ir.Constant(ir.IntType(32), _FLUSH_RESULTS_AND_OPERANDS))
        after = cgutils.alloca_once_value(builder, flushing)
        _access_mode(builder, "llvm.x86.sse.ldmxcsr", after)
        return mode

    return types.uint32(), generate


@intrinsic  # type: ignore[untyped-decorator]
def restore_mode(typing_context: Any, mode: Any) -> Any:
    """Put back what `flush_subnormals` found."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _IS_X86:
            stored = cgutils.alloca_once_value(builder, arguments[0])
            _access_mode(builder, "llvm.x86.sse.ldmxcsr", stored)
        return context.get_dummy_value()

    return types.void(types.uint32), generate
