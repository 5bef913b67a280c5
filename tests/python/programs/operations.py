"""Every operation, each as a case whose result is compared with what one process computes. Prints a line for each case."""

import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist
from world import RANK, SIZE, init, tell

CASES = {}
REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8]
EVERY = [*REDUCED, torch.bool, torch.int16, torch.complex64]


def case(function):
    CASES[function.__name__] = function
    return function


def values(rank, dtype=torch.float32, count=6):
    """Small whole numbers, so that every type holds their sums exactly."""
    return ((torch.arange(count) + 2 * rank) % 5).to(dtype)


def all_values(dtype=torch.float32, count=6):
    return torch.stack([values(rank, dtype, count) for rank in range(SIZE)])


def same(given, expected):
    assert given.dtype == expected.dtype, (given.dtype, expected.dtype)
    assert torch.equal(given, expected), f"{given} is not {expected}"


@case
def all_reduce_of_every_type():
    for dtype in REDUCED:
        tensor = values(RANK, dtype)
        dist.all_reduce(tensor)
        same(tensor, all_values(dtype).sum(0).to(dtype))


@case
def all_reduce_of_every_reduction():
    expected = {
        dist.ReduceOp.PRODUCT: all_values().prod(0),
        dist.ReduceOp.MIN: all_values().amin(0),
        dist.ReduceOp.MAX: all_values().amax(0),
        dist.ReduceOp.AVG: all_values().sum(0) / SIZE,
    }
    for op, result in expected.items():
        tensor = values(RANK)
        dist.all_reduce(tensor, op)
        assert torch.allclose(tensor, result), (op, tensor, result)
    for op, combine in ((dist.ReduceOp.BAND, torch.bitwise_and), (dist.ReduceOp.BOR, torch.bitwise_or), (dist.ReduceOp.BXOR, torch.bitwise_xor)):
        tensor, result = values(RANK, torch.int32), values(0, torch.int32)
        for rank in range(1, SIZE):
            result = combine(result, values(rank, torch.int32))
        dist.all_reduce(tensor, op)
        same(tensor, result)


@case
def means_of_whole_numbers():
    """A mean of whole numbers is rounded towards zero, as with NCCL. Lightning asks for such means."""
    for dtype in (torch.int32, torch.int64, torch.uint8):
        mean = torch.div(all_values(dtype).sum(0), SIZE, rounding_mode="trunc").to(dtype)
        tensor = values(RANK, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(tensor, mean)
        tensor = values(RANK, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True).wait()
        same(tensor, mean)
        tensor = values(RANK, dtype)
        dist.reduce(tensor, 0, dist.ReduceOp.AVG)
        if RANK == 0:
            same(tensor, mean)
    tensor = torch.tensor([-3 * SIZE - 1 if RANK == 0 else 0])
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    same(tensor, torch.tensor([-3 if SIZE > 1 else -4]))
    output = torch.zeros(3, dtype=torch.int64)
    dist.reduce_scatter_tensor(output, values(RANK, torch.int64, 3 * SIZE), dist.ReduceOp.AVG)
    same(output, torch.div(all_values(torch.int64, 3 * SIZE).sum(0).chunk(SIZE)[RANK], SIZE, rounding_mode="trunc"))


@case
def all_reduce_of_scaled_elements():
    from torch.distributed import _make_nccl_premul_sum

    tensor = values(RANK)
    dist.all_reduce(tensor, _make_nccl_premul_sum(0.5))
    same(tensor, all_values().sum(0) * 0.5)


@case
def all_reduce_of_a_complex_tensor():
    tensor = torch.complex(values(RANK), values(RANK))
    dist.all_reduce(tensor)
    same(tensor, torch.complex(all_values().sum(0), all_values().sum(0)))


@case
def all_reduce_that_is_asynchronous():
    tensors = [values(RANK) + i for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.wait() is True
        assert work.is_completed()
        same(tensor, all_values().sum(0) + i * SIZE)


@case
def all_reduce_of_a_tensor_that_is_not_contiguous():
    tensor = values(RANK, count=12).reshape(3, 4).t()
    dist.all_reduce(tensor)
    same(tensor.contiguous(), all_values(count=12).sum(0).reshape(3, 4).t().contiguous())
    tensor = values(RANK, count=12).reshape(6, 2)
    dist.all_reduce(tensor[:, 0])
    same(tensor[:, 0].contiguous(), all_values(count=12).sum(0).reshape(6, 2)[:, 0].contiguous())
    same(tensor[:, 1].contiguous(), values(RANK, count=12).reshape(6, 2)[:, 1].contiguous())


@case
def all_reduce_of_sparse_tensors():
    tensor = torch.sparse_coo_tensor([[RANK, 3]], [1.0, 2.0], (8,))
    dist.all_reduce(tensor)
    expected = torch.zeros(8)
    for rank in range(SIZE):
        expected[rank] += 1
        expected[3] += 2
    same(tensor.to_dense(), expected)


@case
def all_reduce_of_nothing():
    dist.all_reduce(torch.empty(0))


@case
def all_reduce_coalesced():
    tensors = [values(RANK, count=n) for n in (1, 7, 100)]
    group = dist.distributed_c10d._get_default_group()
    group.allreduce_coalesced(tensors).wait()
    for n, tensor in zip((1, 7, 100), tensors):
        same(tensor, all_values(count=n).sum(0))
    with dist._coalescing_manager(async_ops=True) as works:
        tensors = [values(RANK, count=n) for n in (3, 5)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    for n, tensor in zip((3, 5), tensors):
        same(tensor, all_values(count=n).sum(0))


@case
def broadcast_from_every_rank():
    for root in range(SIZE):
        for dtype in EVERY:
            tensor = values(RANK, dtype)
            dist.broadcast(tensor, root)
            same(tensor, values(root, dtype))


@case
def reduce_to_every_rank():
    for root in range(SIZE):
        tensor = values(RANK)
        dist.reduce(tensor, root)
        same(tensor, all_values().sum(0) if root == RANK else values(RANK))


@case
def all_gather():
    for dtype in EVERY:
        outputs = [torch.zeros(6, dtype=dtype) for _ in range(SIZE)]
        dist.all_gather(outputs, values(RANK, dtype))
        for rank, output in enumerate(outputs):
            same(output, values(rank, dtype))
    whole = torch.zeros(SIZE, 6)
    dist.all_gather(list(whole), values(RANK))
    same(whole, all_values())


@case
def all_gather_into_tensor():
    for dtype in EVERY:
        output = torch.zeros(SIZE * 6, dtype=dtype)
        dist.all_gather_into_tensor(output, values(RANK, dtype))
        same(output, all_values(dtype).reshape(-1))


@case
def all_gather_coalesced():
    with dist._coalescing_manager():
        outputs = [torch.zeros(SIZE * n) for n in (2, 5)]
        for n, output in zip((2, 5), outputs):
            dist.all_gather_into_tensor(output, values(RANK, count=n))
    for n, output in zip((2, 5), outputs):
        same(output, all_values(count=n).reshape(-1))


@case
def gather():
    for root in range(SIZE):
        outputs = [torch.zeros(6) for _ in range(SIZE)] if root == RANK else None
        dist.gather(values(RANK), outputs, dst=root)
        for rank, output in enumerate(outputs or ()):
            same(output, values(rank))


@case
def scatter():
    for root in range(SIZE):
        output = torch.zeros(6)
        dist.scatter(output, [values(rank) + root for rank in range(SIZE)] if root == RANK else None, src=root)
        same(output, values(RANK) + root)


@case
def reduce_scatter():
    for dtype in REDUCED:
        output = torch.zeros(3, dtype=dtype)
        dist.reduce_scatter(output, list(values(RANK, dtype, 3 * SIZE).chunk(SIZE)))
        same(output, all_values(dtype, 3 * SIZE).sum(0).to(dtype).chunk(SIZE)[RANK])
    output = torch.zeros(RANK + 1)  # unequal parts
    inputs = [values(RANK, count=rank + 1) for rank in range(SIZE)]
    dist.reduce_scatter(output, inputs)
    same(output, all_values(count=RANK + 1).sum(0))


@case
def reduce_scatter_tensor():
    output = torch.zeros(3)
    dist.reduce_scatter_tensor(output, values(RANK, count=3 * SIZE), dist.ReduceOp.AVG)
    assert torch.allclose(output, all_values(count=3 * SIZE).sum(0).chunk(SIZE)[RANK] / SIZE)
    with dist._coalescing_manager():
        outputs = [torch.zeros(n) for n in (2, 5)]
        for n, one in zip((2, 5), outputs):
            dist.reduce_scatter_tensor(one, values(RANK, count=n * SIZE))
    for n, one in zip((2, 5), outputs):
        same(one, all_values(count=n * SIZE).sum(0).chunk(SIZE)[RANK])


@case
def all_to_all():
    inputs = [values(RANK, count=rank + 1) + 10 * rank for rank in range(SIZE)]  # unequal parts
    outputs = [torch.zeros(RANK + 1) for _ in range(SIZE)]
    dist.all_to_all(outputs, inputs)
    for rank, output in enumerate(outputs):
        same(output, values(rank, count=RANK + 1) + 10 * RANK)


@case
def all_to_all_single():
    for dtype in EVERY:
        output = torch.zeros(2 * SIZE, dtype=dtype)
        dist.all_to_all_single(output, values(RANK, dtype, 2 * SIZE))
        same(output, torch.cat([values(rank, dtype, 2 * SIZE)[2 * RANK : 2 * RANK + 2] for rank in range(SIZE)]))
    given = [rank + 1 for rank in range(SIZE)]
    output = torch.zeros(SIZE * (RANK + 1), 2)
    source = values(RANK, count=2 * sum(given)).reshape(-1, 2)
    dist.all_to_all_single(output, source, [RANK + 1] * SIZE, given)
    begin = sum(given[:RANK])
    expected = [values(rank, count=2 * sum(given)).reshape(-1, 2)[begin : begin + RANK + 1] for rank in range(SIZE)]
    same(output, torch.cat(expected))


@case
def messages():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for dtype in EVERY:
        output = torch.zeros(6, dtype=dtype)
        works = [dist.isend(values(RANK, dtype), after, tag=7), dist.irecv(output, before, tag=7)]
        for work in works:
            work.wait()
            assert work.is_completed()
        same(output, values(before, dtype))
    operations = [dist.P2POp(dist.isend, values(RANK), after), dist.P2POp(dist.irecv, output := torch.zeros(6), before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(output, values(before))


@case
def messages_from_any_rank():
    if RANK == 0:
        seen = set()
        for _ in range(SIZE - 1):
            tensor = torch.zeros(6)
            sender = dist.recv(tensor)
            same(tensor, values(sender))
            seen.add(sender)
        assert seen == set(range(1, SIZE)), seen
    else:
        dist.send(values(RANK), 0)
    dist.barrier()


@case
def objects():
    everybody = [None] * SIZE
    dist.all_gather_object(everybody, {"rank": RANK})
    assert everybody == [{"rank": rank} for rank in range(SIZE)]
    given = [("from", RANK), "x" * 1000] if RANK == 0 else [None, None]
    dist.broadcast_object_list(given, 0)
    assert given == [("from", 0), "x" * 1000]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {rank}" for rank in range(SIZE)] if RANK == 0 else None, src=0)
    assert mine == [f"for {RANK}"]
    gathered = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, gathered, dst=0)
    assert RANK != 0 or gathered == list(range(SIZE))


@case
def barriers():
    dist.barrier()
    dist.barrier(async_op=True).wait()
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        dist.monitored_barrier()
    else:  # torch before 2.14 knows this function only with Gloo's name
        dist.distributed_c10d._get_default_group().monitored_barrier(None, True)


@case
def groups_of_every_subset():
    for number in range(1, 1 << SIZE):
        members = [rank for rank in range(SIZE) if number >> rank & 1]
        group = dist.new_group(members)
        if RANK in members:
            tensor = values(RANK)
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.stack([values(rank) for rank in members]).sum(0))
            dist.destroy_process_group(group)


@case
def split_groups():
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
        return  # earlier, torch splits only a group that has a device of its own, whatever the backend
    group = dist.split_group(None, [[rank] for rank in range(SIZE)])
    tensor = values(RANK)
    dist.all_reduce(tensor, group=group)
    same(tensor, values(RANK))


@case
def sequence_numbers():
    group = dist.distributed_c10d._get_default_group()
    before = group._get_sequence_number_for_group()
    dist.all_reduce(values(RANK))
    dist.broadcast(values(RANK), 0)
    assert group._get_sequence_number_for_group() == before + 2


@case
def calls_release_the_gil():
    """While this rank waits in a call for a late one, its other threads run."""
    steps = []
    ends = threading.Event()

    def count():
        while not ends.wait(0.01):
            steps.append(None)

    for is_asynchronous in (False, True):
        dist.barrier()
        if RANK == 0:
            time.sleep(0.5)
            dist.all_reduce(values(RANK))
            continue
        ends.clear()
        steps.clear()
        thread = threading.Thread(target=count)
        thread.start()
        work = dist.all_reduce(values(RANK), async_op=is_asynchronous)
        if is_asynchronous:
            work.wait()
        ends.set()
        thread.join()
        assert len(steps) >= 3, steps


@case
def futures_in_a_chain():
    tensor = values(RANK)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    # A callback may wait for another operation of the same group.
    again = doubled.then(lambda done: dist.all_reduce(done.value(), async_op=True).get_future().wait()[0])
    same(again.wait(), all_values().sum(0) * 2 * SIZE)


@case
def gradients_of_ddp():
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    alone = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    alone.load_state_dict(model.module.state_dict())
    model(values(RANK)[None]).sum().backward()
    (alone(all_values()).sum() / SIZE).backward()
    for one, other in zip(model.module.parameters(), alone.parameters()):
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


init()
for name in CASES:
    try:
        CASES[name]()
        tell(case=name, error=None)
    except Exception:
        tell(case=name, error=traceback.format_exc())
        sys.exit(1)  # the ranks are no longer in step
dist.destroy_process_group()
tell(case="end", error=None)
