"""The Work of torch.distributed: operations under way, what remains to be done after them, and their future."""

import threading

import torch
from torch._C._distributed_c10d import Work

from paceline.torch import futures
from paceline.torch.errors import Error, as_dist_error

_latest = threading.local()  # the Work that this thread made last (see backend.py)


def latest():
    """Returns the Work that this thread has made since the last call, or None."""
    work = getattr(_latest, "work", None)
    _latest.work = None
    return work


def milliseconds(timeout):
    """A timedelta, or seconds, as whole milliseconds, at least 1; 0 for None, and for the values with which torch says "none"."""
    if timeout is None:
        return 0
    seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else float(timeout)
    return max(1, round(seconds * 1000)) if seconds > 0 else 0


class PacelineWork(Work):
    """`operations`: those of the engine that must end; `result`: the tensors of the future; `after`: called once when all have ended,
    to copy results into the caller's tensors; `event`: the profiler's event of the operation, or None.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, operations, result, after=None, event=None):
        super().__init__()
        self._operations = operations
        self._result = result
        self._after = after
        self._lock = threading.Lock()  # guards _after and _future
        self._future = None
        self._unfinished = 0  # operations that the future waits for
        self._event = event  # of the profiler; None if none runs
        if event is not None:
            self.get_future()  # the event ends with it
        _latest.work = self

    def is_completed(self):
        if not all(operation.is_completed() for operation in self._operations):
            return False
        if self.exception() is None:
            self._run_after()
        return True

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        for operation in self._operations:
            error = operation.error()
            if error is not None:
                return as_dist_error(error)
        return None

    def wait(self, timeout=None):
        try:
            for operation in self._operations:
                operation.wait(milliseconds(timeout))
        except Error as error:
            raise as_dist_error(error) from None
        self._run_after()
        if self._event is not None:
            self._event.wait()
        return True

    def synchronize(self):
        self.wait()

    def source_rank(self):
        return self._operations[0].source_rank() if self._operations else -1

    _source_rank = source_rank

    def result(self):
        return self._result

    def forget_result(self):
        """Drops the tensors of an operation that has ended and whose future nobody has asked for."""
        with self._lock:
            if self._future is None:
                self._result = []

    def get_future(self):
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = torch.futures.Future()
            if self._event is not None:
                self._event.end_with(self._future)
            self._unfinished = len(self._operations)
        if not self._operations:
            self._future.set_result(self._result)
            return self._future
        futures.ensure_thread()
        for operation in self._operations:
            operation.then(self._one_has_ended)
        return self._future

    def _one_has_ended(self):
        with self._lock:
            self._unfinished -= 1
            if self._unfinished > 0:
                return
        error = self.exception()
        if error is None:
            try:
                self._run_after()
            except Exception as problem:  # for example, an output that the program has resized meanwhile
                error = problem
        if error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(error)

    def _run_after(self):
        if self._after is None:
            return
        with self._lock:
            after, self._after = self._after, None
            if after is None:
                return
            # A result may be written to an inference tensor only in inference mode, and to a leaf only without gradients.
            tensors = self._result[0] if self._result and isinstance(self._result[0], list) else self._result
            with torch.inference_mode(bool(tensors) and tensors[0].is_inference()), torch.no_grad():
                after()


def ended(result, after=None):
    """The Work of a call that has already been carried out."""
    work = PacelineWork((), result, after)
    work._run_after()
    return work
