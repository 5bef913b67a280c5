"""Functions that the references share: ranks of Python's PyTorch over Gloo as processes, and raw files."""
import datetime
import multiprocessing
import os
import socket
import sys

LIMIT_S = 100


def write(tensor, folder, name):
    tensor.contiguous().numpy().tofile(os.path.join(folder, name))


def join_group():
    """Joins the group of a rank; returns the rank's number."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT_S))
    return dist.get_rank()


def run_rank(rank, body, arguments):
    os.environ["RANK"] = str(rank)
    body(*arguments)


def run_ranks(num_ranks, body, *arguments):
    """Calls body(*arguments) in `num_ranks` forks of this process, and exits with the worst of their exit codes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # USE_LIBUV: Debian 13's PyTorch is built without it.
    os.environ.update({"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
                       "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USE_LIBUV": "0"})
    import torch.distributed  # noqa: F401  here, so that the ranks share the 2 s that it takes

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=run_rank, args=(rank, body, arguments)) for rank in range(num_ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
    for process in processes:
        process.kill()
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
