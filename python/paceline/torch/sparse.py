"""The sum of sparse tensors: every rank gets the indices and values of all ranks, and adds them up in the order of the ranks."""

import torch
from torch.distributed import ReduceOp

from paceline import _core
from paceline.torch.errors import Error, as_dist_error, refuse
from paceline.torch.tensors import elements, kind_of
from paceline.torch.work import ended


def all_reduce_sparse(group, tensors, reduce_op):
    """Replaces each of the tensors, which have equal sizes, by the sum over all tensors of all ranks. Runs in the calling thread."""
    if kind_of(reduce_op) != ReduceOp.RedOpType.SUM:
        refuse("all_reduce", f"unsupported reduction operation {kind_of(reduce_op)} of sparse tensors: only a sum")
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        if tensor.layout != torch.sparse_coo:
            refuse("all_reduce", f"invalid tensor layout at index {index}: {tensor.layout}")
        if tensor.dtype != first.dtype:
            refuse("all_reduce", f"invalid tensor type at index {index}: expected {first.dtype}, got {tensor.dtype}")
        if tensor.shape != first.shape:
            refuse("all_reduce", f"invalid tensor size at index {index}: expected {list(first.shape)}, got {list(tensor.shape)}")
        if tensor.device.type != "cpu":
            refuse("all_reduce", f"unsupported device type {tensor.device.type} of a sparse tensor: copy it to the CPU")
    own = tensors[0].clone()
    for tensor in tensors[1:]:
        own = own + tensor
    own = own.coalesce()
    counts = torch.empty(group._world, dtype=torch.int64)
    _gather(group, torch.tensor([own._nnz()]), counts)
    counts = counts.tolist()
    indices = _gather_all(group, own.indices().t().contiguous(), counts)
    values = _gather_all(group, own.values().contiguous(), counts)
    total = torch.zeros_like(own)
    for rank_indices, rank_values in zip(indices.split(counts), values.split(counts)):
        total = total + torch.sparse_coo_tensor(rank_indices.t(), rank_values, first.shape)
    total = total.coalesce()
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(total)
    return ended(list(tensors))


def _gather(group, mine, whole, counts=()):
    dtype, count = elements(mine)
    group._sequence += 1
    op = _core.OPS["all_gather_v" if counts else "all_gather"]
    try:
        group._group.run(op, dtype, mine.data_ptr(), count, whole.data_ptr(), elements(whole)[1], timeout_ms=group._timeout_ms,
                         counts=list(counts))
    except Error as error:
        raise as_dist_error(error) from None


def _gather_all(group, mine, counts):
    """Returns the rows of all ranks; rank r has counts[r] rows."""
    whole = torch.empty((sum(counts), *mine.shape[1:]), dtype=mine.dtype)
    row = elements(whole)[1] // sum(counts) if sum(counts) else 0
    if row:
        _gather(group, mine, whole, [count * row for count in counts])
    return whole
