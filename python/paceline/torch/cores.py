"""Binds a rank to its share of the cores.

Ranks that share cores are ten times slower at 64 KB, because a waiting rank takes the core from a working one. `paceline run` binds
its ranks; torchrun does not, so a rank binds itself when the first group forms. PACELINE_BIND=0 turns that off.
"""

import os

from paceline.torch.exchange import MOST_BYTES, exchange_texts

_bound = False


def bind_to_own_cores(group):
    """Collective over `group`, in every process at most once. Does nothing if a launcher has bound the ranks already, that is, if the
    ranks of this host may not all run on the same cores, or if there are fewer cores than ranks."""
    global _bound
    is_first, _bound = not _bound, True
    if not is_first or group.size == 1:
        return
    cores = _physical_cores(os.sched_getaffinity(0))
    own = ",".join("/".join(str(cpu) for cpu in core) for core in cores) if _may_bind() else "none"
    own = own if len(own) <= MOST_BYTES else "none"
    everybody = exchange_texts(group, own)
    here = group.neighbours
    if own == "none" or any(everybody[rank] != own for rank in here) or len(here) < 2 or len(cores) < len(here):
        return
    number = here.index(group.rank)
    share = cores[number * len(cores) // len(here) : (number + 1) * len(cores) // len(here)]
    cpus = {cpu for core in share for cpu in core}
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:
            pass  # the thread has ended meanwhile


def _may_bind():
    return os.environ.get("PACELINE_BIND", "1") != "0" and "PACELINE_STORE" not in os.environ


def _physical_cores(cpus):
    """The CPUs, as a list of tuples: the hardware threads of each core."""
    cores = {}
    for cpu in sorted(cpus):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                key = file.read().strip()
        except OSError:
            key = str(cpu)
        cores.setdefault(key, []).append(cpu)
    return sorted(tuple(core) for core in cores.values())
