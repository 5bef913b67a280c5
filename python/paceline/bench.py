"""`paceline bench` of the wheel: Paceline beside another backend of torch.distributed, in turns within the same processes.

    paceline bench --against gloo [--ranks 2] [--sizes 8K,64K,32M] [--types float32,bfloat16] [--turns 10]

Measures all-reduces through Python. The ranks have a group of each backend and change between the contestants several times a second, so
what else happens on the machine meets all of them. Contestants: Paceline, whose ranks are bound to their shares of the cores, as under
`paceline run` and torchrun; Gloo unbound, as its users run it; and Gloo bound in the same way. With fewer cores than ranks nobody is bound.

Before every timed call each rank writes its whole tensor and passes a barrier; the result of the first call of a block is checked. A block
is the median of a contestant's calls in a turn, on the slowest rank, and a cell is the median of the blocks with the lowest and the highest
of them. The last column is how many times as long the faster Gloo takes, turn by turn.
"""

import argparse
import datetime
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 900  # seconds for a whole measurement
BLOCK = 0.2  # seconds
FEWEST_CALLS, MOST_CALLS = 5, 1000
UNITS = {"K": 1 << 10, "M": 1 << 20}
TYPES = ("float32", "bfloat16", "float16", "float64")


class Cores:
    """The cores that the process was given, and the share of one of its ranks."""

    def __init__(self, rank, ranks):
        self.all = os.sched_getaffinity(0)
        cores = sorted(self.all)
        self.can_bind = len(cores) >= ranks
        self.own = set(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]) if self.can_bind else self.all

    def bind(self, is_bound):
        """Binds every thread of the process: to this rank's share, or to all cores."""
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), self.own if is_bound else self.all)
            except OSError:
                pass  # the thread has ended meanwhile


def groups_of(store, rank, ranks):
    """A group of each backend with all ranks, by the backend's name. The one of Gloo is the default group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timeout)
    return {"gloo": dist.group.WORLD, "paceline": dist.new_group(backend="paceline", timeout=timeout)}


def largest(value, group):
    """The largest of all ranks' values. Collective."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    return tensor.item()


def take_turns(contestants, cores, group, turns, prepare=lambda: None, calls=None, around=None):
    """Measures contestants, {name: (action, whether the ranks are bound)}, in turns, and returns {name: [milliseconds of a block]}.

    `prepare` is called before every timed action, and then all ranks pass a barrier. `calls`: of a block; about 0.2 s of them if None.
    `around(name, block)`: calls block(), which makes the calls of a block. Collective over `group`; every rank gets the same times.
    """
    import torch.distributed as dist

    blocks = {name: [] for name in contestants}
    counts = {}

    def time_of_call(action):
        prepare()
        dist.barrier(group)
        begin = time.perf_counter()
        action()
        return time.perf_counter() - begin

    for turn in range(-1, turns):  # the first turn warms up
        for name, (action, is_bound) in contestants.items():
            cores.bind(is_bound and cores.can_bind)
            time_of_call(action)
            if turn < 0:
                slowest = largest(min(time_of_call(action) for _ in range(2)), group)
                counts[name] = calls or min(MOST_CALLS, max(FEWEST_CALLS, int(BLOCK / (slowest + 1e-6))))
                continue
            taken = []

            def block(name=name, action=action, taken=taken):
                taken.extend(time_of_call(action) for _ in range(counts[name]))

            around(name, block) if around else block()
            blocks[name].append(largest(statistics.median(taken) * 1e3, group))
    return blocks


def cell(values, digits=None):
    """The median of values, with the lowest and the highest."""
    middle, most = statistics.median(values), max(values)
    digits = digits if digits is not None else 0 if most >= 100 else 1 if most >= 10 else 2
    return f"{middle:.{digits}f} [{min(values):.{digits}f}, {most:.{digits}f}]"


def fastest(blocks, names):
    """The shortest of the named contestants' blocks, turn by turn."""
    return [min(times) for times in zip(*(blocks[name] for name in names if name in blocks))]


def measure_all_reduce(groups, cores, rank, ranks, dtype, size, turns):
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(max(1, size // dtype.itemsize), dtype=dtype)

    def all_reduce_by(backend):
        group, is_checked = groups[backend], []

        def action():
            dist.all_reduce(tensor, group=group)
            if not is_checked:
                is_checked.append(True)
                if not (tensor == ranks * (ranks + 1) // 2).all():
                    raise SystemExit(f"paceline bench: the all-reduce of {backend} gave a wrong sum")

        return action

    contestants = {"Paceline": (all_reduce_by("paceline"), True), "Gloo": (all_reduce_by("gloo"), False)}
    if cores.can_bind:
        contestants["Gloo, bound"] = (all_reduce_by("gloo"), True)
    return take_turns(contestants, cores, groups["paceline"], turns, prepare=lambda: tensor.fill_(rank + 1))


def rank_main(options):
    import torch
    import torch.distributed as dist

    cores = Cores(options.rank, options.ranks)
    groups = groups_of(options.store, options.rank, options.ranks)
    is_first = True
    for kind in options.types:
        for size in options.sizes:
            blocks = measure_all_reduce(groups, cores, options.rank, options.ranks, getattr(torch, kind), size, options.turns)
            if options.rank != 0:
                continue
            if is_first:
                print(f"| {options.ranks} ranks, all-reduce, us | {' | '.join(blocks)} | Gloo / Paceline |\n|{'---|' * (len(blocks) + 2)}")
            is_first = False
            ratios = [theirs / mine for mine, theirs in zip(blocks["Paceline"], fastest(blocks, ("Gloo", "Gloo, bound")))]
            columns = [cell([1e3 * time for time in times]) for times in blocks.values()]
            print(f"| {kind}, {size_text(size)} | {' | '.join(columns)} | {cell(ratios, 1)} |", flush=True)
    end_rank(groups)


def end_rank(groups):
    """Ends this rank of a measurement. Without the end of the interpreter, because a process with torch 2.15's Gloo may abort in it."""
    import torch.distributed as dist

    dist.barrier(groups["paceline"])
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def size_text(size):
    for unit in ("M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]} {unit}B"
    return f"{size} B"


def sizes(text):
    items = [re.fullmatch(r"([1-9]\d*)([KM]?)", item) for item in text.split(",")]
    if not all(items):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of bytes such as 8K,64K,32M")
    return [int(item[1]) * UNITS.get(item[2], 1) for item in items]


def types(text):
    names = text.split(",")
    if not set(names) <= set(TYPES):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of {', '.join(TYPES)}")
    return names


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return int(text)


def run_ranks(script, arguments, ranks):
    """Starts ranks of a measurement, `script` with `arguments`, --store and --rank, and waits for them. `script`: words after the
    interpreter. Raises SystemExit if one fails; the others are then ended."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_BIND": "0"}
        command = [sys.executable, *script, *arguments, "--store", f"{folder}/store", "--rank"]
        started = [subprocess.Popen([*command, str(rank)], env=variables) for rank in range(ranks)]
        end = time.monotonic() + LIMIT
        try:
            while any(rank.poll() is None for rank in started):
                if any(rank.returncode for rank in started) or time.monotonic() > end:
                    break
                time.sleep(0.05)
        finally:
            for rank in started:
                rank.kill()
    codes = [rank.wait() for rank in started]
    if any(codes):
        raise SystemExit(f"paceline bench: the ranks ended with {codes}")


def main(arguments):
    parser = argparse.ArgumentParser(prog="paceline bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=("gloo",), required=True, help="the backend to compare with")
    parser.add_argument("--ranks", type=positive, default=2, metavar="N", help="2 by default")
    parser.add_argument("--sizes", type=sizes, default="8K,64K,32M", metavar="LIST", help="bytes; 8K,64K,32M by default")
    parser.add_argument("--types", type=types, default="float32,bfloat16", metavar="LIST", help=f"of {', '.join(TYPES)}")
    parser.add_argument("--turns", type=positive, default=10, metavar="N", help="10 by default")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        rank_main(options)
        return
    try:
        import paceline.torch  # noqa: F401: says what is wrong with torch before ranks are started
    except ImportError as error:
        raise SystemExit(f"paceline bench: {error}") from None
    run_ranks(["-m", "paceline.bench"], arguments, options.ranks)


if __name__ == "__main__":
    main(sys.argv[1:])
