"""A barrier that tells rank 0 which ranks are missing, by the group's store, so that a missing rank does not end the group."""

from datetime import timedelta
import time

from paceline.torch.errors import refuse


def monitored_barrier(group, timeout_ms, wait_all_ranks):
    """Collective. On rank 0, raises an error that names the first rank that has not arrived in time, or all of them. On the other ranks,
    raises an error if rank 0 misses a rank, or does not answer."""
    group._sequence += 1
    prefix = f"monitored_barrier/{group._sequence}/"
    end = time.monotonic() + timeout_ms / 1000
    if group._number != 0:
        _report(group, prefix, timeout_ms)
        return
    missing = []
    for rank in range(1, group._world):
        left = timedelta(milliseconds=max(1, round((end - time.monotonic()) * 1000)))
        try:
            group._store.wait([f"{prefix}{rank}"], left)
        except Exception:
            missing.append(rank)
            if not wait_all_ranks:
                break
    names = ", ".join(str(rank) for rank in missing)
    group._store.set(f"{prefix}outcome", names or "all")
    if missing and timeout_ms == 0:
        refuse("monitored_barrier", f"Rank 0 timed out in monitoredBarrier after 0 ms, before rank {names} came")
    if missing:
        refuse("monitored_barrier", f"{'Ranks' if len(missing) > 1 else 'Rank'} {names} failed to pass monitoredBarrier in {timeout_ms} ms")


def _report(group, prefix, timeout_ms):
    rank = group._number
    try:
        group._store.set(f"{prefix}{rank}", "here")
        group._store.wait([f"{prefix}outcome"], timedelta(milliseconds=timeout_ms))
        outcome = group._store.get(f"{prefix}outcome").decode()
    except Exception as error:
        outcome = f"rank 0 did not answer within {timeout_ms} ms ({error})"
    if outcome != "all":
        refuse(
            "monitored_barrier",
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check "
            f"rank 0 logs for faulty rank. Missing: {outcome}",
        )
