"""Operations as events of torch's profiler, from their start to their end: "paceline:all_reduce", with the shapes of the tensors."""

import threading

import torch
import torch.distributed as dist

_is_on = torch._C._autograd._profiler_enabled
_Event = getattr(torch._C._profiler, "_RecordFunctionFast", None)

# Where torch's name of an event differs from the engine's name of the operation.
_NAMES = {
    "all_gather_v": "all_gather",
    "reduce_scatter_v": "reduce_scatter",
    "all_to_all_v": "all_to_all",
}


def event(operation, tensors):
    """The event of an operation that begins now; None if no profiler runs."""
    return Event(operation, tensors) if _is_on() and _Event is not None else None


class Event:
    def __init__(self, operation, tensors):
        # In Gloo's place the events have Gloo's name, which programs look for.
        backend = dist.get_backend() if dist.is_initialized() else "paceline"
        name = f"{'gloo' if backend == 'gloo' else 'paceline'}:{_NAMES.get(operation, operation)}"
        self._event = _Event(name, [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)])
        self._event.__enter__()
        self._has_ended = threading.Event()

    def end(self):
        """Called once, by the thread that notices that the operation has ended."""
        self._event.__exit__(None, None, None)
        self._has_ended.set()

    def wait(self):
        """Returns when the event has been recorded, soon after the end of the operation."""
        self._has_ended.wait(timeout=10)
