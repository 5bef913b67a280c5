"""Functions that the references share: ranks of Python's PyTorch over Gloo as processes, and raw files."""
import datetime
import os
import socket
import subprocess
import sys

LIMIT_S = 100


def write(tensor, folder, name):
    tensor.contiguous().numpy().tofile(os.path.join(folder, name))


def is_rank():
    return "RANK" in os.environ


def join_group():
    """Joins the group of a rank; returns the rank's number."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["USE_LIBUV"] = "0"  # Debian 13's PyTorch is built without it
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT_S))
    return dist.get_rank()


def run_ranks(num_ranks):
    """Starts the program again as `num_ranks` ranks, and exits with the worst of their exit codes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(num_ranks):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]], env=env))
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    sys.exit(max(abs(code) for code in codes))
