#!/usr/bin/python3
"""checkpoint_beside_python.py BUILD --directory DIR [--mib N] [--ranks N] [--loaders N]: save and load in turns with PyTorch's DCP.

Tensors of 1024 x 1024 floats, MIB MiB together, with their rows divided among the ranks: RANKS ranks save them and then LOADERS ranks load them, into
existing memory. Paceline: checkpoint_bench under `paceline run`. PyTorch: torch.distributed.checkpoint, tensors with Shard(0), over Gloo; each file
is synced, as Paceline's files are. In each round all four have a turn. The first save or load of a turn does not count, and the median of the others
is the round's number: the milliseconds of the slowest rank. So a load reads from the kernel's cache. Start it with the Python of a PyTorch 2.x that
has numpy; DIR must be on a disk.
"""
import argparse
import os
import re
import shutil
import statistics
import sys
import time

from side_by_side import free_port, machine, program, spread, start, wait_all

ROWS = COLUMNS = 1024
TIMES = 3  # times of a turn that count
LIMIT_S = 600


def run_rank(options, saves):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    own = torch.arange(ROWS).chunk(dist.get_world_size())[dist.get_rank()]
    state = {}
    for i in range((options.mib << 20) // (ROWS * COLUMNS * 4)):
        local = torch.full((len(own), COLUMNS), float(i))
        state[f"model.{i:05}"] = DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size([ROWS, COLUMNS]), stride=(COLUMNS, 1))
    for i in range(1 + TIMES):
        if saves and dist.get_rank() == 0:
            shutil.rmtree(options.directory, ignore_errors=True)
            os.sync()
        dist.barrier()
        begin = time.perf_counter()
        (dcp.save if saves else dcp.load)(state, checkpoint_id=options.directory)
        took = torch.tensor(time.perf_counter() - begin)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0 and i > 0:
            print(took.item() * 1e3, flush=True)
    dist.destroy_process_group()


def median_of(processes):
    wait_all(processes, LIMIT_S)
    return statistics.median(float(line) for line in processes[0].output.splitlines() if re.fullmatch(r"[\d.]+", line))


def python_turn(options, saves):
    ranks = options.ranks if saves else options.loaders
    env = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}
    command = [sys.executable, os.path.abspath(__file__), options.build, "--directory", os.path.join(options.directory, "dcp"), "--mib", str(options.mib),
               "--rank", "save" if saves else "load"]
    return median_of([start(command, {**env, "RANK": str(rank)}) for rank in range(ranks)])


def own_turn(options, saves):
    command = [program(options.build, "apps", "paceline"), "run", "--nproc-per-node", str(options.ranks if saves else options.loaders),
               "--threads-per-rank", "1", program(options.build, "benchmarks", "checkpoint_bench"), "--directory", options.directory, "--mib",
               str(options.mib), "--rounds", str(TIMES), "--only", "save" if saves else "load"]
    return median_of([start(command)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="for example build/release")
    parser.add_argument("--directory", required=True, help="made, and removed afterwards")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2, help="that save")
    parser.add_argument("--loaders", type=int, default=3, help="ranks that load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", choices=["save", "load"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(options, options.rank == "save")
    os.makedirs(options.directory)
    print(f"{machine()}; {options.mib} MiB, {options.ranks} ranks save, {options.loaders} load, {options.rounds} rounds\n\n"
          "| | Paceline, ms | DCP, ms | ratio |\n|---|---|---|---|", flush=True)
    try:
        times = {saves: ([], []) for saves in (True, False)}
        for _ in range(options.rounds):
            for saves, (own, python) in times.items():
                own.append(own_turn(options, saves))
                python.append(python_turn(options, saves))
        for saves, (own, python) in times.items():
            ratio = spread([a / b for a, b in zip(own, python)])
            print(f"| {'save' if saves else 'load'} | {spread(own, 0)} | {spread(python, 0)} | {ratio} |")
    finally:
        shutil.rmtree(options.directory)


main()
