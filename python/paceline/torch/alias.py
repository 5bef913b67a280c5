"""Puts this backend in the place of Gloo, for programs that write "gloo" into their source."""

import functools
import threading

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from paceline.torch.create import create_group
from paceline.torch.operations import Operations
from paceline.torch.versions import has_python_backends


def replace_gloo():
    if has_python_backends():
        # Every backend is a plugin, whose name may be registered again. The type must not be GLOO: DDP's logger takes every backend of that
        # type for torch's own class in C++, and would crash.
        devices = list(dist.Backend.backend_capability.get("gloo", ["cpu"]))
        dist.Backend.register_backend(
            "gloo", _create, extended_api=True, devices=devices, _backend_type=dist.ProcessGroup.BackendType.CUSTOM
        )
        _name_groups_gloo()
    elif not isinstance(c10d.ProcessGroupGloo, _Replacement):
        c10d.ProcessGroupGloo = _Replacement("ProcessGroupGloo", (), {"real": c10d.ProcessGroupGloo})
        c10d._new_process_group_helper = _remembering_ranks(c10d._new_process_group_helper)
        c10d._create_process_group_wrapper = dist._create_process_group_wrapper = _wrapping_own(c10d._create_process_group_wrapper)


def _create(options, backend_options=None):
    group = create_group(options, backend_options)
    group.backend_name = "gloo"
    return group


@functools.cache
def _name_groups_gloo():
    """A ProcessGroup's name() tells the type of its backend, "custom". Programs that ask for the name expect "gloo"."""
    name_of_type = dist.ProcessGroup.name

    @functools.wraps(name_of_type)
    def name(self):
        backend, _ = c10d._world.pg_map.get(self, (None, None))
        return "gloo" if backend == "gloo" else name_of_type(self)

    dist.ProcessGroup.name = name


_being_made = threading.local()  # the ranks and the name of the group that this thread makes


def _remembering_ranks(helper):
    """Wraps the function with which torch makes a group of Gloo: torch does not tell the group its ranks in the world, so they are kept here."""

    @functools.wraps(helper)
    def new_group(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *arguments, **options):
        _being_made.ranks, _being_made.name = global_ranks_in_group, group_name
        return helper(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *arguments, **options)

    return new_group


def _wrapping_own(wrap):
    """torch makes the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL from two groups in C++: the wrapped one, and one of Gloo for the checks."""

    @functools.wraps(wrap)
    def create(wrapped_pg, *arguments, **options):
        if isinstance(wrapped_pg, Operations):
            wrapped_pg.check_every_call()
            return wrapped_pg
        replacement, c10d.ProcessGroupGloo = c10d.ProcessGroupGloo, c10d.ProcessGroupGloo.real
        try:
            return wrap(wrapped_pg, *arguments, **options)
        finally:
            c10d.ProcessGroupGloo = replacement

    return create


class _Replacement(type):
    """Stands for the class ProcessGroupGloo, which torch before 2.14 calls by its name."""

    def __call__(cls, store, rank, size, timeout=None, **_others):
        options = c10d._DistributedBackendOptions()
        options.store, options.group_rank, options.group_size = store, rank, size
        options.timeout = timeout or c10d.default_pg_timeout
        ranks = list(getattr(_being_made, "ranks", ()))
        is_known = len(ranks) in (0, size)
        options.global_ranks_in_group = ranks if is_known else []
        options.group_id = getattr(_being_made, "name", "") if is_known else ""
        return _create(options)

    def __instancecheck__(cls, value):
        return isinstance(value, (cls.real, Operations))

    def __getattr__(cls, name):
        return getattr(cls.real, name)
