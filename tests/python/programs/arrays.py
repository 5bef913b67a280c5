"""Every operation of paceline.numpy, under `paceline run`. Without torch."""

import sys

import numpy as np
import paceline.numpy as plnp

with plnp.init(timeout=30) as group:
    rank, size = group.rank, group.size
    ranks = np.arange(size)
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8):
        array = np.full(5, rank + 1, dtype)
        assert (group.all_reduce(array) == sum(range(1, size + 1))).all()
    assert np.allclose(group.all_reduce(np.full(3, float(rank)), "mean"), ranks.mean())
    assert (group.broadcast(np.full((2, 2), rank), root=1) == 1).all()
    reduced = group.reduce(np.full(3, 2.0), root=0)
    assert (reduced == (2.0 * size if rank == 0 else 2.0)).all()
    assert (group.all_gather(np.full(2, rank)) == ranks[:, None]).all()
    assert (group.reduce_scatter(np.arange(size * 3.0).reshape(size, 3)) == size * np.arange(rank * 3.0, rank * 3 + 3)).all()
    assert (group.all_to_all(np.arange(size) + 10 * rank) == 10 * ranks + rank).all()
    if rank == 0:
        group.send(np.arange(4), to=1, tag=3)
    elif rank == 1:
        array = np.zeros(4, int)
        assert group.receive(array, tag=3) == 0
        assert (array == np.arange(4)).all()
    group.barrier()
    for wrong in (lambda: group.all_reduce(np.zeros((4, 4))[:, 0]), lambda: group.all_reduce([1.0]), lambda: group.all_reduce(np.ones(2), "xor")):
        try:
            wrong()
            raise SystemExit("an array that cannot be was accepted")
        except ValueError:
            pass
    try:
        group.all_reduce(np.ones(2, complex))
        raise SystemExit("a complex array was accepted")
    except TypeError:
        pass
    try:
        group.all_reduce(np.ones(2 + rank))
        raise SystemExit("arrays of different sizes were accepted")
    except plnp.Error as error:
        assert error.code == "invalid" and error.operation == "all_reduce" and error.group == "world", vars(error)
    assert "torch" not in sys.modules
    print("arrays: all is well", flush=True)
