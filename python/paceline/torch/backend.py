"""The backend for torch 2.14 and later: a torch.distributed Backend in Python, one of those of a ProcessGroup."""

import functools

from torch._C._distributed_c10d import Backend, ProcessGroup

from paceline.torch.create import form
from paceline.torch.errors import refuse
from paceline.torch.operations import Operations
from paceline.torch.work import latest


class PacelineBackend(Operations, Backend):
    def __init__(self, group, store, timeout, options=None):
        Backend.__init__(self, group.rank, group.size)
        self._start(group, store, timeout, options if type(options) is Backend.Options else None)
        if len(self._options.global_ranks_in_group) == 0:
            self._options.global_ranks_in_group = group.world_ranks
        _return_own_works()

    @property
    def supports_splitting(self):
        return True

    @property
    def supports_coalescing(self):
        return True

    def split(self, store, ranks, opts):
        """Collective over the members: the group of these ranks of this group; None on a rank that is not a member."""
        ranks = list(ranks)
        if self._number not in ranks:
            return None
        members = self._group.world_ranks
        timeout = opts._timeout if opts is not None else self._options._timeout
        name = getattr(opts, "group_name", "") or f"{self._group.name}.split"
        group = form(store, ranks.index(self._number), [members[rank] for rank in ranks], timeout, name)
        return PacelineBackend(group, store, timeout, opts)

    def perform_nocolor_split(self, _device):
        """Does nothing: only members form a group."""

    def eager_connect_single_device(self, _device):
        """Does nothing: the ranks are connected when the group is made."""

    def new_window(self, *_arguments, **_options):
        refuse("new_window", "a group of Paceline has no windows: send the elements, by isend and irecv or all_to_all")

    def shrink(self, *_arguments, **_options):
        refuse("shrink", "a group of Paceline keeps its ranks: make one of those that remain, by new_group")

    def merge(self, *_arguments, **_options):
        refuse("merge", "groups of Paceline cannot be merged: make one of all their ranks, by new_group")

    def reconfigure(self, *_arguments, **_options):
        refuse("reconfigure", "a group of Paceline keeps its ranks: make another one, by new_group")

    def suspend(self, *_arguments, **_options):
        refuse("suspend", "a group of Paceline holds nothing that could be freed for a time: shut it down, and make a new one later")


# The methods of a ProcessGroup that return a Work.
_METHODS = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "_allgather_base",
    "all_gather_single",
    "allgather_coalesced",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "barrier",
    "_end_coalescing",
)


@functools.cache
def _return_own_works():
    """torch wraps the Work of a Python backend in one that knows only wait() and get_future(): is_completed() would be false for ever, and
    a receive from any rank would have no source. So the methods of ProcessGroup get a last step: if a backend of this package has made a
    Work during the call, they return that Work."""
    for name in _METHODS:
        method = getattr(ProcessGroup, name, None)
        if method is not None:
            setattr(ProcessGroup, name, _returning_own_work(method))


def _returning_own_work(method):
    @functools.wraps(method)
    def call(self, *arguments, **options):
        latest()
        work = method(self, *arguments, **options)
        return latest() or work

    return call
