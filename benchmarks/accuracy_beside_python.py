#!/usr/bin/python3
"""The accuracy of the book's job after equally many epochs, with Python's PyTorch and with Paceline, over several seeds.

    /usr/bin/python3 benchmarks/accuracy_beside_python.py build/release --data-dir DIR        DIR has CIFAR-10 in its binary layout

python_ddp.py and train_image run with 2 ranks x 1 thread, and for each seed with the same flags, initial weights and batches. Bar: the means over
the seeds are within 0.3 points. The two differ in rounding (memory formats, fused optimizer), which training amplifies: single seeds may differ more.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

from side_by_side import free_port, machine, program, read_metrics, spread, start, wait_all

RANKS = 2
LIMIT_S = 4 * 3600
WITHIN_POINTS = 0.3
CIFAR_RECORD = 3073


def flags(options, seed, steps_flag, steps):
    return ["--data-dir", options.data_dir, "--batch-size", str(options.batch_size), "--lr", str(options.lr), "--weight-decay", "0.005",
            "--seed", str(seed), steps_flag, str(steps)]


def python_accuracy(options, seed, steps, folder):
    metrics, port = os.path.join(folder, f"python-{seed}.json"), str(free_port())
    here = os.path.dirname(os.path.abspath(__file__))
    processes = []
    for rank in range(RANKS):
        env = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes.append(start([sys.executable, os.path.join(here, "python_ddp.py"), *flags(options, seed, "--steps", steps), "--warm-up", "0",
                                "--evaluate", "--metrics", metrics], env))
    wait_all(processes, LIMIT_S)
    with open(metrics) as f:
        return 100 * json.load(f)["accuracy"]


def own_accuracy(options, seed, steps, folder):
    metrics = os.path.join(folder, f"paceline-{seed}.jsonl")
    wait_all([start([program(options.build, "apps", "paceline"), "run", "--nproc-per-node", str(RANKS), "--threads-per-rank", "1",
                     program(options.build, "examples", "train_image"), "--dataset", "cifar10", "--epochs", str(options.epochs),
                     *flags(options, seed, "--max-steps", steps), "--metrics", metrics])], LIMIT_S)
    return 100 * read_metrics(metrics)["end"][0]["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="for example build/release")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of a rank")
    parser.add_argument("--lr", type=float, default=1e-5)
    options = parser.parse_args()
    options.data_dir = os.path.abspath(options.data_dir)
    images = sum(os.path.getsize(os.path.join(options.data_dir, f"data_batch_{i}.bin")) for i in range(1, 6)) // CIFAR_RECORD
    steps = options.epochs * -(-images // (RANKS * options.batch_size))
    print(f"{machine()}; {options.epochs} epochs of {images} images\n\n| seed | Paceline | Python |\n|---|---|---|")
    own, python = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            own.append(own_accuracy(options, seed, steps, folder))
            python.append(python_accuracy(options, seed, steps, folder))
            print(f"| {seed} | {own[-1]:.2f}% | {python[-1]:.2f}% |", flush=True)
    apart = statistics.mean(own) - statistics.mean(python)
    print(f"\nPaceline {spread(own)}%, Python {spread(python)}%; the means are {apart:+.2f} points apart (bar: {WITHIN_POINTS})")
    return abs(apart) > WITHIN_POINTS


if __name__ == "__main__":
    sys.exit(main())
