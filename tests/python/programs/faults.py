"""One fault, named by the first argument: prints what every rank sees."""

import datetime
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from world import ARGUMENTS, RANK, SIZE, STORE, init, outcome, tell

FAULTS = {}


def fault(function):
    FAULTS[function.__name__] = function
    return function


def tell_outcome(action):
    begin = time.monotonic()
    result = outcome(action)
    tell(error=result, seconds=time.monotonic() - begin)


def tell_attributes(action):
    """The fields that a program can read from an error, besides its text."""
    try:
        action()
    except dist.DistBackendError as error:
        tell(**{name: getattr(error, name) for name in ("code", "operation", "group", "ranks", "deadline")})


@fault
def killed():
    init()
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))
    tell_attributes(lambda: dist.all_reduce(torch.ones(4)))


@fault
def stopped():
    init(timeout=3)
    dist.barrier()
    if RANK == 1:
        tell(pid=os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))


@fault
def another_shape():
    init()
    tell_outcome(lambda: dist.all_reduce(torch.ones(4 + RANK)))


@fault
def another_type():
    init()
    tell_outcome(lambda: dist.all_reduce(torch.ones(4, dtype=torch.float32 if RANK else torch.float64)))


@fault
def another_order():
    init()
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)) if RANK else dist.broadcast(torch.ones(4), 0))


@fault
def throws():
    """One rank raises while the others wait for it: Python ends it, and the others learn that it has left."""
    init()
    dist.barrier()
    if RANK == 1:
        raise ValueError("this rank gives up")
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))


@fault
def late_rank():
    init(timeout=2)
    dist.barrier()
    if RANK == 1:
        time.sleep(5)
        return
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))


def backend_of_world():
    group = dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cpu")) if hasattr(dist.Backend, "_ensure_backend_registered") else group


@fault
def shorter_timeouts():
    """The time-out of a group is changed, and a wait has one of its own; both are shorter than the group's first one."""
    init(timeout=60)
    backend = backend_of_world()
    dist.barrier()
    if RANK == 1:
        time.sleep(6)
        return
    work = dist.irecv(torch.ones(4), 1)
    tell_outcome(lambda: work.wait(datetime.timedelta(seconds=1)))
    if hasattr(dist, "set_timeout"):
        dist.set_timeout(datetime.timedelta(seconds=2), dist.group.WORLD)
    else:  # earlier, torch sets the time-outs only of its own classes
        backend.set_timeout(datetime.timedelta(seconds=2))
    assert backend.options._timeout == datetime.timedelta(seconds=2)
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))


@fault
def aborted():
    """One rank aborts the group while the others wait in a call, and has an operation under way itself."""
    init()
    backend = backend_of_world()
    dist.barrier()
    if RANK == 1:
        time.sleep(1)
        work = dist.irecv(torch.ones(4), 0)
        backend.abort()
        tell_outcome(work.wait)
        tell_outcome(lambda: dist.all_reduce(torch.ones(4)))
        return
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))


@fault
def shut_down():
    """After shutdown() every call is an error that says so."""
    init()
    dist.barrier()
    backend_of_world().shutdown()
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))


@fault
def a_rank_that_never_starts():
    if RANK == 0:
        tell_outcome(lambda: init(timeout=2))


def tensor_of_cuda():
    """A tensor that claims to be on a CUDA device, but has no memory, so the tests need no GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(2, device="cuda")


@fault
def refused_tensors():
    init()
    backend = backend_of_world()
    cases = {
        "complex": lambda: backend.allreduce([torch.ones(2, dtype=torch.complex64)]).wait(),
        "sparse": lambda: backend.broadcast([torch.ones(2).to_sparse()]).wait(),
        "meta": lambda: backend.allreduce([torch.ones(2, device="meta")]).wait(),
        "cuda": lambda: backend.allreduce([tensor_of_cuda()]).wait(),
        "bitwise": lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        "size": lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)),
        "not contiguous": lambda: dist.all_to_all_single(torch.ones(2, 2), torch.ones(2, 2).t()),
    }
    for name, action in cases.items():
        tell(case=name, error=outcome(action))
    dist.all_reduce(tensor := torch.ones(1))  # the group still works
    tell(case="after", error=None if tensor.item() == SIZE else ("AssertionError", str(tensor)))


@fault
def what_a_group_cannot_do():
    """Methods of torch's backends that Paceline lacks; each names the alternative. Then the group still works."""
    init()
    backend = backend_of_world()
    for name in ("new_window", "shrink", "merge", "reconfigure", "suspend"):
        tell(case=name, error=outcome(getattr(backend, name)))
    dist.all_reduce(tensor := torch.ones(1))
    tell(case="after", error=None if tensor.item() == SIZE else ("AssertionError", str(tensor)))


@fault
def two_groups_of_one_name():
    init()
    one = dist.new_group([0, 1], group_desc="same")
    other = dist.new_group([0, 1], group_desc="same")
    for group in (one, other):
        dist.all_reduce(tensor := torch.ones(1), group=group)
        tell(error=None if tensor.item() == SIZE else ("AssertionError", str(tensor)))


@fault
def two_groups_in_one_place():
    """Two of the engine's groups have the same name in one store: ranks form the second while they still have the first."""
    from paceline.torch.create import form

    store = dist.FileStore(STORE, SIZE)
    timeout = datetime.timedelta(seconds=20)

    def use(group):
        tell(error=None if exchange_texts(group, f"rank {RANK}") == [f"rank {rank}" for rank in range(SIZE)] else ("AssertionError", "texts"))

    from paceline.torch.exchange import exchange_texts

    first = form(store, RANK, list(range(SIZE)), timeout, "one name")
    second = []
    tell_outcome(lambda: second.append(form(store, RANK, list(range(SIZE)), timeout, "one name")))
    for group in (first, *second):
        use(group)


@fault
def store_that_dies():
    """The store's host leaves before the second rank's group has formed."""
    port = int(ARGUMENTS[1])
    if RANK == 0:
        store = dist.TCPStore("127.0.0.1", port, SIZE, True, wait_for_workers=False)
        store.wait(["come"])
        os._exit(0)
    store = dist.TCPStore("127.0.0.1", port, SIZE, False)
    store.set("come", "1")

    def form():
        dist.init_process_group("paceline", store=store, rank=RANK, world_size=SIZE, timeout=datetime.timedelta(seconds=20))

    tell_outcome(form)


@fault
def store_that_dies_later():
    """The store's host, the last rank, leaves after the group of the others has formed: collectives go on, and no further group forms."""
    port, members = int(ARGUMENTS[1]), SIZE - 1
    if RANK == members:
        store = dist.TCPStore("127.0.0.1", port, SIZE, True, wait_for_workers=False)
        store.wait(["formed by 0", "formed by 1"])
        os._exit(0)
    store = dist.TCPStore("127.0.0.1", port, SIZE, False)
    init(world_size=members, store=store)
    dist.barrier()
    store.set(f"formed by {RANK}", "")
    while True:
        try:
            store.add("ping", 1)
            time.sleep(0.05)
        except Exception:
            break  # the host has left
    dist.all_reduce(tensor := torch.ones(1))
    tell(error=None if tensor.item() == members else ("AssertionError", str(tensor)))
    tell_outcome(lambda: dist.new_group([0, 1]))


@fault
def forked_workers():
    """DataLoader workers that fork: the loader works, and a collective in a worker is an error there, not a hang."""
    init()

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            error = outcome(lambda: dist.all_reduce(torch.ones(1))) if index == 0 else None
            return index, "" if error is None else f"{error[0]}: {error[1]}"

    loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork")
    texts = [text for _, texts in loader for text in texts]
    tell(error=("worker", texts[0]))
    dist.all_reduce(tensor := torch.ones(1))
    tell(error=None if tensor.item() == SIZE else ("AssertionError", str(tensor)))


@fault
def exit_with_work_in_flight():
    init()
    dist.barrier()
    if RANK == 1:
        time.sleep(1)
        return
    dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda done: None)
    dist.irecv(torch.ones(4), 1)


@fault
def exit_while_a_thread_starts():
    """A thread that completes futures is about to start another one while the interpreter ends: the end must not leave that one behind,
    because a thread that wants the GIL after the end aborts the process."""
    from types import SimpleNamespace

    from paceline.torch import futures

    core = futures._core
    first = []

    def next_completion():
        first[:] = first or [threading.current_thread()]
        if threading.current_thread() is not first[0]:
            time.sleep(3)
        return core.next_completion()

    def num_waiting():
        time.sleep(1)
        return 0

    futures._core = SimpleNamespace(next_completion=next_completion, num_waiting_for_completions=num_waiting,
                                    close_completions=core.close_completions)
    init()
    dist.all_reduce(torch.ones(4), async_op=True).get_future()
    time.sleep(0.3)
    futures._end()
    tell(left=[thread.name for thread in threading.enumerate() if thread.name == "paceline-futures"])
    futures._core = core


@fault
def exit_without_destroying_groups():
    """A program may end without destroy_process_group()."""
    init()
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1 << 16), group=group)
    dist.all_reduce(torch.ones(4))


@fault
def groups_that_form_again():
    """The default group forms again in the same store after destroy_process_group()."""
    store = dist.FileStore(STORE, SIZE)
    for _ in range(3):
        init(store=store)
        dist.all_reduce(tensor := torch.ones(1))
        tell(error=None if tensor.item() == SIZE else ("AssertionError", str(tensor)))
        dist.destroy_process_group()


@fault
def calls_that_differ_with_debugging():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: a difference is an error before anything is sent, so the group still works afterwards."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    init()
    tell_outcome(lambda: dist.all_reduce(torch.ones(4 + RANK)))
    dist.all_reduce(tensor := torch.ones(1))
    tell(error=None if tensor.item() == SIZE else ("AssertionError", str(tensor)))


@fault
def without_shared_memory_files():
    """A container whose /dev/shm has 64 KB (the test has mounted it): the engine does not use it."""
    room = os.statvfs("/dev/shm")
    assert room.f_blocks * room.f_frsize <= 64 << 10, room
    init()
    dist.all_reduce(tensor := torch.ones(8 << 20))  # 32 MB
    tell(error=None if tensor.min() == tensor.max() == SIZE else ("AssertionError", str(tensor)))


@fault
def interrupted():
    """Ctrl-C in a collective: a KeyboardInterrupt within a second; the other ranks learn the cause."""
    init()
    dist.barrier()
    if RANK == 1:
        time.sleep(3)
        tell_outcome(lambda: dist.all_reduce(torch.ones(4)))
        return
    interrupt()
    tell_outcome(lambda: dist.all_reduce(torch.ones(4)))


@fault
def interrupted_in_a_wait():
    init()
    if RANK == 1:
        time.sleep(3)
        return
    work = dist.irecv(torch.ones(4), 1)
    interrupt()
    tell_outcome(work.wait)


@fault
def interrupted_while_the_group_forms():
    if RANK == 0:
        interrupt(after=1)
        tell_outcome(init)


def interrupt(after=0.5):
    threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


FAULTS[ARGUMENTS[0]]()
sys.stdout.flush()
