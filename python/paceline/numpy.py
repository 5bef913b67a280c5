"""Collectives on NumPy arrays, for programs without PyTorch.

    import numpy as np
    import paceline.numpy as plnp

    group = plnp.init()                  # under paceline run, torchrun, mpirun or srun; alone without a launcher
    gradient = np.ones(1000, np.float32)
    group.all_reduce(gradient)           # in place: the sum of all ranks' arrays
    group.all_reduce(gradient, "mean")

Arrays are float16, float32, float64, int8, int16, int32, int64, uint8 or bool. An array that is written in place must be contiguous
(C order); others are copied. Reductions: "sum", "mean", "product", "min", "max", "bit_and", "bit_or", "bit_xor".

Every call raises paceline.Error, which names rank, operation and cause, if it cannot be carried out. All ranks make the same calls in the
same order. Thread safety: calls may be made from any thread, and are carried out one after another.
"""

import numpy as np

from paceline import _core
from paceline._core import Error

__all__ = ["Error", "Group", "init"]

_OPS = _core.OPS
_DTYPES = {np.dtype(name): number for name, number in _core.DTYPES.items() if name != "bfloat16"}


def init(timeout=None):
    """Collective over the job: connects this process with the other ranks, and returns the group of all. `timeout`: seconds that an
    operation may take; half an hour by default."""
    return Group(_core.Group(timeout_ms=round((timeout or 0) * 1000)))


class Group:
    """The ranks of a job. Use it in a `with` statement, or call close(), to leave in order."""

    def __init__(self, group):
        self._group = group

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    rank = property(lambda self: self._group.rank, doc="The number of this rank, from 0.")
    size = property(lambda self: self._group.size, doc="The number of ranks.")

    def close(self):
        """Leaves the group; the other ranks see a rank that has left."""
        self._group.close()

    def barrier(self):
        """Returns when every rank has called it."""
        self._group.run(_OPS["barrier"], 0, 0, 0, 0, 0)

    def all_reduce(self, array, op="sum"):
        """Replaces `array` on every rank by the reduction of all ranks' arrays, and returns it."""
        place = _in_place("all_reduce", array)
        self._group.run(_OPS["all_reduce"], *place, *place[1:], reduce_op=_reduction(op))
        return array

    def reduce(self, array, root=0, op="sum"):
        """Like all_reduce(), but only `root` gets the result; the other arrays stay as they are."""
        place = _in_place("reduce", array)
        self._group.run(_OPS["reduce"], *place, *place[1:], reduce_op=_reduction(op), root=root)
        return array

    def broadcast(self, array, root=0):
        """Replaces `array` on every rank by that of `root`, and returns it."""
        place = _in_place("broadcast", array)
        self._group.run(_OPS["broadcast"], *place, *place[1:], root=root)
        return array

    def all_gather(self, array):
        """Returns the arrays of all ranks, with the rank as the first axis. They have equal shapes."""
        array = np.ascontiguousarray(array)
        whole = np.empty((self.size, *array.shape), array.dtype)
        self._group.run(_OPS["all_gather"], *_memory("all_gather", array), *_memory("all_gather", whole)[1:])
        return whole

    def reduce_scatter(self, array, op="sum"):
        """Reduces all ranks' arrays, whose first axis has a part for each rank, and returns this rank's part."""
        array = np.ascontiguousarray(array)
        if array.shape[:1] != (self.size,):
            raise ValueError(f"reduce_scatter: the first axis of an array of shape {array.shape} must have {self.size} parts, one for each rank")
        part = np.empty(array.shape[1:], array.dtype)
        place = _memory("reduce_scatter", array)
        self._group.run(_OPS["reduce_scatter"], *place, *_memory("reduce_scatter", part)[1:], reduce_op=_reduction(op))
        return part

    def all_to_all(self, array):
        """Sends part r of the first axis to rank r, and returns the parts that all ranks sent to this one, in the order of the ranks."""
        array = np.ascontiguousarray(array)
        if array.shape[:1] != (self.size,):
            raise ValueError(f"all_to_all: the first axis of an array of shape {array.shape} must have {self.size} parts, one for each rank")
        whole = np.empty_like(array)
        self._group.run(_OPS["all_to_all"], *_memory("all_to_all", array), *_memory("all_to_all", whole)[1:])
        return whole

    def send(self, array, to, tag=0):
        """Sends the elements of `array` to a rank. Returns when the array may be changed."""
        array = np.ascontiguousarray(array)
        dtype, address, count = _memory("send", array)
        self._group.send(address, count, dtype, to, tag, 0, array).wait()

    def receive(self, array, source=-1, tag=0):
        """Fills `array` with the elements that rank `source` sent; -1: from any rank. Returns the sender's number."""
        dtype, address, count = _in_place("receive", array)
        message = self._group.receive(address, count, dtype, source, tag, 0, array)
        message.wait()
        return message.source_rank()


def _reduction(op):
    number = _core.REDUCE_OPS.get(op)
    if number is None:
        raise ValueError(f"'{op}' is not a reduction; choose one of {', '.join(_core.REDUCE_OPS)}")
    return number


def _memory(operation, array):
    """(element type, address, number of elements)."""
    number = _DTYPES.get(array.dtype)
    if number is None:
        raise TypeError(f"{operation}: arrays of {array.dtype} cannot be sent; use one of {', '.join(str(dtype) for dtype in _DTYPES)}")
    return number, array.ctypes.data, array.size


def _in_place(operation, array):
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"{operation}: the result is written in place, so it needs a contiguous array that may be written to, of type ndarray")
    return _memory(operation, array)
