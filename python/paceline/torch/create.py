"""Makes a group for torch.distributed from the arguments that it passes to the creator of a backend."""

import torch.distributed as dist
from torch.distributed import DistBackendError

from paceline import _core
from paceline.torch.cores import bind_to_own_cores
from paceline.torch.detail import is_asked_for
from paceline.torch.errors import Error, as_dist_error
from paceline.torch.work import milliseconds


def form(store, rank, world_ranks, timeout, name):
    """Collective: forms the engine's group of these ranks of the world."""
    world_size = dist.get_world_size() if dist.is_initialized() else len(world_ranks)
    try:
        return _core.Group(
            store,
            name=name,
            world_ranks=world_ranks,
            rank=rank,
            world_size=max(world_size, 1 + max(world_ranks)),
            timeout_ms=milliseconds(timeout),
        )
    except Error as error:
        raise as_dist_error(error) from None


def create_group(options, backend_options=None):
    """The creator of the backend `paceline` (torch's extended API)."""
    from paceline.torch.versions import has_python_backends

    world_ranks = list(options.global_ranks_in_group)
    is_world = not world_ranks
    group = form(
        options.store,
        options.group_rank,
        world_ranks or list(range(options.group_size)),
        options.timeout,
        "world" if is_world else options.group_id or "sub-group",
    )
    bind_to_own_cores(group)
    if has_python_backends():
        from paceline.torch.backend import PacelineBackend

        return PacelineBackend(group, options.store, options.timeout, backend_options)
    from paceline.torch.process_group import PacelineProcessGroup

    process_group = PacelineProcessGroup(group, options.store, options.timeout)
    if is_asked_for():
        process_group.check_every_call()
    return process_group


__all__ = ["DistBackendError", "create_group", "form"]
