"""The backend for torch 2.6 to 2.13: a ProcessGroup in Python, which stands for the whole group."""

import collections
import functools

import torch
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from paceline.torch.operations import Operations
from paceline.torch.versions import torch_version

_KEEPS_WORKS = (2, 9)  # the first version that keeps the Python half of a Work alive itself
_MOST_KEPT = 4096
_WITH_RESULT = 64


class PacelineProcessGroup(Operations, ProcessGroup):
    def __init__(self, group, store, timeout):
        ProcessGroup.__init__(self, group.rank, group.size)
        # torch before 2.9 forgets the Python half of a Work that C++ waits for, and the wait would never end. So the last Works are kept,
        # without the tensors of those that have long ended.
        self._kept = collections.deque(maxlen=_MOST_KEPT) if torch_version() < _KEEPS_WORKS else None
        self._group_name = group.name
        self._group_desc = "undefined"
        self._start(group, store, timeout)
        _shut_down_with_torch()

    # torch's own methods ask the backends of a ProcessGroup for these, and this group has none: it is its own backend.

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    def _get_backend(self, _device):
        return self

    def getBackendName(self):
        """Never "gloo", unlike name(): DDP's logger assumes that a group of that name has torch's own backend in C++."""
        return "paceline"

    def name(self):
        """The name that torch gives every group whose backend is not its own; dist.get_backend() returns "paceline"."""
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
        if self._kept is not None:
            self._kept.append(work)
            if len(self._kept) > _WITH_RESULT:
                old = self._kept[-_WITH_RESULT]
                if old.is_completed():
                    old.forget_result()
        return super()._made(work)


@functools.cache
def _shut_down_with_torch():
    """In the oldest supported versions of torch, destroy_process_group() shuts down only the groups of NCCL."""
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
