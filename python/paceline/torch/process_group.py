"""The backend for torch 2.6 to 2.13: a ProcessGroup in Python that carries out the operations itself, without a torch Backend."""

import collections
import functools

import torch
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from paceline.torch.operations import Operations
from paceline.torch.versions import torch_version

_KEEPS_WORKS = (2, 9)  # the first version of torch that keeps the Python object of a Work alive itself
_MOST_KEPT = 4096  # Works that a group keeps alive
_WITH_RESULT = 64  # the newest of these Works, which also keep their tensors


class PacelineProcessGroup(Operations, ProcessGroup):
    def __init__(self, group, store, timeout):
        ProcessGroup.__init__(self, group.rank, group.size)
        # Before version 2.9, torch drops the Python object of a Work while C++ still waits for the Work, and the wait would never end. So
        # the group keeps its last Works; older ones of these lose their tensors once they have completed.
        self._kept = collections.deque(maxlen=_MOST_KEPT) if torch_version() < _KEEPS_WORKS else None
        self._group_name = group.name
        self._group_desc = "undefined"  # torch's word for a group without a description
        self._start(group, store, timeout)
        _shut_down_with_torch()

    # The methods of torch's ProcessGroup get the device types and the backend from the group's Backend objects. This group has no Backend
    # object, so it returns its own device type and itself.

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    def _get_backend(self, _device):
        return self

    def getBackendName(self):
        """Returns "paceline" even if name() returns "gloo": for "gloo", DDP's logger would expect torch's own backend in C++."""
        return "paceline"

    def name(self):
        """Returns "gloo" for a group in Gloo's place (alias.py), otherwise "custom", torch's name for all backends that are not its own."""
        return "gloo" if self.backend_name == "gloo" else "custom"

    def getGroupName(self):
        return self._group_name

    def setGroupName(self, name):
        self._group_name = name

    def getGroupDesc(self):
        return self._group_desc

    def setGroupDesc(self, text):
        self._group_desc = text

    def _made(self, work):
        """Keeps the Work alive if torch does not, and drops the tensors of an older Work that has completed."""
        if self._kept is not None:
            self._kept.append(work)
            if len(self._kept) > _WITH_RESULT:
                old = self._kept[-_WITH_RESULT]
                if old.is_completed():
                    old.forget_result()
        return super()._made(work)


@functools.cache
def _shut_down_with_torch():
    """Makes destroy_process_group() shut down the groups of this class too: in the oldest supported versions, torch shuts down only those
    of NCCL."""
    shut_down = getattr(c10d, "_shutdown_backend", None)
    if shut_down is None:
        return

    @functools.wraps(shut_down)
    def call(group):
        if isinstance(group, PacelineProcessGroup):
            group.shutdown()
        else:
            shut_down(group)

    c10d._shutdown_backend = call
