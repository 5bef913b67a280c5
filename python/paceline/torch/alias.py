"""Puts this backend in the place of Gloo, for programs that write "gloo" into their source."""

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from paceline.torch.create import create_group
from paceline.torch.versions import has_python_backends


def replace_gloo():
    if has_python_backends():
        # Every backend is a plugin, whose name may be registered again. The type must not be GLOO: DDP's logger takes every backend of that
        # type for torch's own class in C++, and would crash.
        dist.Backend.register_backend(
            "gloo", create_group, extended_api=True, devices=["cpu"], _backend_type=dist.ProcessGroup.BackendType.CUSTOM
        )
    elif not isinstance(c10d.ProcessGroupGloo, _Replacement):
        c10d.ProcessGroupGloo = _Replacement("ProcessGroupGloo", (), {"real": c10d.ProcessGroupGloo})


class _Replacement(type):
    """Stands for the class ProcessGroupGloo, which torch before 2.14 calls by its name."""

    def __call__(cls, store, rank, size, timeout=None, **_others):
        options = c10d._DistributedBackendOptions()
        options.store, options.group_rank, options.group_size = store, rank, size
        options.timeout = timeout or c10d.default_pg_timeout
        options.group_id = ""
        return create_group(options)

    def __instancecheck__(cls, value):
        return isinstance(value, cls.real)

    def __getattr__(cls, name):
        return getattr(cls.real, name)
