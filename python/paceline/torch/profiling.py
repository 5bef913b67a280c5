"""Operations as events of torch's profiler, from their start to their end: "paceline:all_reduce", with the shapes of the tensors."""

import contextlib
import threading

import torch

is_on = torch._C._autograd._profiler_enabled
_local = threading.local()  # has_event: whether this thread is making calls that count as one event

# Where torch's name of an event differs from the engine's name of the operation.
_NAMES = {
    "all_gather_v": "all_gather",
    "reduce_scatter_v": "reduce_scatter",
    "all_to_all_v": "all_to_all",
}


def event(backend, operation, tensors):
    """The event of an operation that begins now; None if no profiler runs."""
    return Event(backend, operation, tensors) if is_on() and not getattr(_local, "has_event", False) else None


@contextlib.contextmanager
def one_event(backend, operation, tensors):
    """The calls made in the block have one event together, or None if no profiler runs."""
    one = event(backend, operation, tensors)
    _local.has_event = one is not None
    try:
        yield one
    finally:
        _local.has_event = False


class Event:
    def __init__(self, backend, operation, tensors):
        name = f"{backend}:{_NAMES.get(operation, operation)}"
        shown = (tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
        self._record = torch._C._autograd._record_function_with_args_enter(name, *shown)
        self._recorded = None

    def end_with(self, future):
        """Ends the event when `future` completes. A profiler belongs to a thread; only this call of torch lets another thread end the event
        from Python."""
        self._recorded = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(self._record, future)

    def wait(self):
        """Returns when the event has been recorded, soon after the end of the operation."""
        self._recorded.wait()
