"""Functions on the tensors of a call: their types as numbers of the engine, checks, and the parts of reductions that the engine lacks."""

import torch
from torch.distributed import ReduceOp

from paceline import _core
from paceline.torch.errors import refuse

DTYPES = {getattr(torch, name): number for name, number in _core.DTYPES.items()}
BYTE = DTYPES[torch.uint8]
WHOLE_NUMBERS = {number for dtype, number in DTYPES.items() if not dtype.is_floating_point and dtype != torch.bool}
SUM, MEAN = _core.REDUCE_OPS["sum"], _core.REDUCE_OPS["mean"]

_KINDS = ReduceOp.RedOpType
REDUCTIONS = {
    _KINDS.SUM: _core.REDUCE_OPS["sum"],
    _KINDS.AVG: _core.REDUCE_OPS["mean"],
    _KINDS.PRODUCT: _core.REDUCE_OPS["product"],
    _KINDS.MIN: _core.REDUCE_OPS["min"],
    _KINDS.MAX: _core.REDUCE_OPS["max"],
    _KINDS.BAND: _core.REDUCE_OPS["bit_and"],
    _KINDS.BOR: _core.REDUCE_OPS["bit_or"],
    _KINDS.BXOR: _core.REDUCE_OPS["bit_xor"],
    _KINDS.PREMUL_SUM: _core.REDUCE_OPS["sum"],
}


def require_dense(operation, tensors):
    """Refuses tensors that are not dense, or not on the CPU."""
    for tensor in tensors:
        if tensor.layout != torch.strided:
            refuse(operation, f"unsupported layout {tensor.layout}: pass a dense tensor (tensor.to_dense())")
        if tensor.device.type != "cpu":
            refuse(
                operation,
                f"unsupported device type {tensor.device.type}: this backend takes only CPU tensors; for both devices, form the group with "
                f'init_process_group("cpu:paceline,{tensor.device.type}:...")',
            )


def require_alike(operation, tensors, dtype, sizes):
    """Refuses tensors that differ from the first one in element type or sizes."""
    for index, tensor in enumerate(tensors):
        if tensor.dtype != dtype:
            refuse(operation, f"invalid tensor type at index {index}: expected {dtype}, got {tensor.dtype}")
        if tensor.shape != sizes:
            refuse(operation, f"invalid tensor size at index {index}: expected {list(sizes)}, got {list(tensor.shape)}")


def elements(tensor):
    """Returns the engine's number of the element type and the number of elements, for operations that only move
    elements. Elements of a type that the engine does not know count as bytes."""
    number = DTYPES.get(tensor.dtype)
    if number is None:
        return BYTE, tensor.numel() * tensor.element_size()
    return number, tensor.numel()


def reduced_type(operation, tensor):
    """Returns the engine's number of the tensor's element type; refuses types that the engine cannot reduce."""
    number = DTYPES.get(tensor.dtype)
    if number is None:
        advice = "; reduce torch.view_as_real(tensor)" if tensor.is_complex() else ""
        refuse(operation, f"{tensor.dtype} cannot be reduced{advice}")
    return number


def kind_of(reduce_op):
    """Returns the kind of a reduction, given as a ReduceOp or as its kind (RedOpType)."""
    return getattr(reduce_op, "op", reduce_op)


def reduction(operation, reduce_op):
    """Returns the engine's number of a reduction of torch.distributed; refuses reductions that the engine lacks."""
    kind = kind_of(reduce_op)
    number = REDUCTIONS.get(kind)
    if number is None:
        refuse(operation, f"unsupported reduction operation {kind}")
    return number


def prescale(tensor, reduce_op):
    """For PREMUL_SUM, multiplies the tensor by the factor of the reduction, in place. For other reductions, does nothing."""
    if kind_of(reduce_op) != _KINDS.PREMUL_SUM:
        return
    factor = getattr(reduce_op, "factor", None)
    if factor is None:
        factor = reduce_op.__getstate__()[1]  # before 2.14, torch returns the factor only here
    tensor.mul_(factor)


def combine(tensors, reduce_op):
    """Reduces the tensors of one rank into the first one, before the ranks reduce theirs. AVG only adds here: afterwards the engine, or
    divide_whole_numbers(), divides the sum over all ranks."""
    kind = kind_of(reduce_op)
    into = tensors[0]
    steps = {
        _KINDS.SUM: into.add_,
        _KINDS.PREMUL_SUM: into.add_,
        _KINDS.AVG: into.add_,
        _KINDS.PRODUCT: into.mul_,
        _KINDS.BAND: into.bitwise_and_,
        _KINDS.BOR: into.bitwise_or_,
        _KINDS.BXOR: into.bitwise_xor_,
        _KINDS.MIN: lambda other: torch.minimum(into, other, out=into),
        _KINDS.MAX: lambda other: torch.maximum(into, other, out=into),
    }
    for tensor in tensors[1:]:
        steps[kind](tensor)


def divide_whole_numbers(tensors, divisor):
    """Divides sums of integers in place, to make them means. Rounds towards zero, as integer division in C and in NCCL does.
    Divides a tensor only once even if the list contains it twice."""
    for tensor in {tensor.data_ptr(): tensor for tensor in tensors}.values():
        tensor.div_(divisor, rounding_mode="trunc")


def flat(tensors):
    """Returns one tensor with the elements of all tensors, in order. A single tensor is not copied if it is contiguous."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def adjoining(tensors):
    """Returns whether the tensors are contiguous and follow each other in memory without gaps, so that the engine can fill them as one."""
    end = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not tensor.is_contiguous():
            return False
        end += tensor.numel() * tensor.element_size()
    return True


def spread(whole, tensors):
    """Fills the tensors, one after the other, with the elements of `whole`."""
    begin = 0
    for tensor in tensors:
        count = tensor.numel()
        tensor.copy_(whole[begin : begin + count].view(tensor.shape))
        begin += count
