"""The checks that TORCH_DISTRIBUTED_DEBUG=DETAIL asks for, with torch 2.6 to 2.13.

From torch 2.14 on torch itself wraps a backend in its checks. Before that it can wrap only classes in C++, so this module does the same: before
every collective the ranks exchange what they are about to call. A difference is an error on every rank, after which the group still works,
because nothing of the collective has been sent yet.
"""

import torch.distributed as dist

from paceline.torch.errors import Error, refuse
from paceline.torch.exchange import exchange_texts

# Operations whose ranks may have tensors of different shapes.
_UNEQUAL = ("gather", "all_gather_v", "reduce_scatter_v", "all_to_all_v")


def is_asked_for():
    return dist.get_debug_level() == dist.DebugLevel.DETAIL


def require_alike_calls(group, op, tensors, timeout_ms):
    """Collective: raises a DistBackendError if the ranks are about to make different calls, or a rank does not arrive in time. `group`: the
    Operations; `op`: the engine's name of the operation; `tensors`: those of this rank, or lists of them."""
    try:
        everybody = exchange_texts(group._group, _fingerprint(group, op, tensors), timeout_ms)
    except Error as error:
        _refuse_incomplete(group, error, timeout_ms)
    mine = everybody[group._number]
    for rank, theirs in enumerate(everybody):
        if theirs != mine:
            aspects = [one.split("=")[0] for one, other in zip(mine.split("; "), theirs.split("; ")) if one != other]
            refuse(
                op,
                f"Detected mismatch between collectives on ranks. Rank {group._number} is running collective: {mine}, but Rank {rank} is "
                f"running collective: {theirs}. Collectives differ in the following aspects: {', '.join(aspects)}",
            )


def _fingerprint(group, op, tensors):
    flat = [tensor for given in tensors for tensor in (given if isinstance(given, (list, tuple)) else (given,))]
    if op in _UNEQUAL:
        flat = []
    parts = {
        "SequenceNumber": group._sequence,
        "OpType": op.removesuffix("_v").replace("_", "").upper(),
        "TensorShape": ", ".join(str(list(tensor.shape)) for tensor in flat),
        "TensorDtypes": ", ".join(sorted({tensor.type().split(".")[-1].removesuffix("Tensor") for tensor in flat})),
        "TensorDeviceTypes": ", ".join(sorted({tensor.device.type for tensor in flat})),
    }
    return "; ".join(f"{name}={value}" for name, value in parts.items())


def _refuse_incomplete(group, error, timeout_ms):
    missing = ", ".join(str(rank) for rank in error.ranks)
    if group._number == 0 and missing:
        refuse("monitored_barrier", f"Ranks {missing} failed to pass monitoredBarrier in {timeout_ms} ms: {error}")
    refuse(
        "monitored_barrier",
        f"Rank {group._number} reached monitoredBarrier, but received an error. Please check rank 0 logs for faulty rank. {error}",
    )
