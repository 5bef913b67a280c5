"""gpt_beside_python.py BUILD [--way WAY] [--ranks N] [--gbit G] [--own] [--rounds N] [--steps N]: a GPT in turns with PyTorch.

A GPT of 31 million parameters (gpt_bench.cpp), Adam, one thread per rank, all on this machine. Start it with the Python of a PyTorch 2.x whose
LibTorch BUILD uses. In each round every variant has a turn, in a different order every time:

  data      2 sequences of 128 bytes per rank: stages 0 to 3 of fully_shard(), and FSDP2 (each block is a unit) and DDP over Gloo
  hosts     the same with one rank on each of N hosts (network namespaces, needs root; links of G Gbit/s): one copy per host, and hosts that
            divide the parameters; also the bytes that a host sends, and how much longer a step takes than that of a rank alone (exposed
            communication)
  tensor    8 sequences per step: tensor parallelism, and PyTorch's (Colwise, Rowwise, loss_parallel) over Gloo
  pipeline  8 sequences per step, each a micro-batch: each schedule, and torch.distributed.pipelining's schedule of the same name; with
            --cut 4+2+1+3 only Paceline, with stages of 4, 2, 1 and 3 of the 10 layers, in this order on the ranks; --sequences N
  generate  tokens per second from one sequence, with kept keys and values; one process with one thread

tensor and pipeline also run one rank with as many threads, which takes the 8 sequences at once. Prints milliseconds per step (or tokens per
second), and for data the memory of all ranks (PSS), after 2 x STEPS steps: median and range, and the ratios round by round. With --own only
Paceline has turns.
"""
import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import hosts
import side_by_side

TOKENS, PROMPT = 128, 16
LAYERS, WIDTH, HEADS, VOCABULARY = 10, 512, 8, 256
SEQUENCES = {"data": 2, "hosts": 2, "tensor": 8, "pipeline": 8, "generate": 1}
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zero-bubble": 2}  # stages per rank


def make_model(layers=range(LAYERS), is_first=True, is_last=True):
    """The part of a pipeline with the blocks `layers`. Queries, keys and values are three layers, as tensor parallelism needs them."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.projection = nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x, past=None):
            n, t, _ = x.shape
            y = self.ln_1(x)
            q, k, v = (layer(y).view(n, t, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
            if past is not None:
                k, v = past.add(k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
            x = x + self.projection(y.transpose(1, 2).reshape(n, t, -1))
            return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(VOCABULARY, WIDTH) if is_first or is_last else None
            self.wpe = nn.Embedding(TOKENS, WIDTH) if is_first else None
            self.h = nn.ModuleList(Block() for _ in layers)
            self.ln_f = nn.LayerNorm(WIDTH) if is_last else None

        def forward(self, x, pasts=None, before=0):
            if is_first:
                x = self.wte(x) + self.wpe(torch.arange(before, before + x.shape[1]))
            for i, block in enumerate(self.h):
                x = block(x, pasts[i] if pasts else None)
            return self.ln_f(x) @ self.wte.weight.t() if is_last else x

    return Gpt()


def make_batch(sequences):
    import torch
    tokens = torch.randint(VOCABULARY, (sequences, TOKENS + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(logits, targets):
    import torch.nn.functional as F
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def data_step(kind):
    import torch
    import torch.distributed as dist
    model = make_model()
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    inputs, targets = make_batch(SEQUENCES["tensor" if kind == "one" else "data"])

    def passes():
        loss_of(model(inputs), targets).backward()

    return list(model.parameters()), passes


def tensor_step():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
    from torch import nn

    class WithHead(nn.Module):  # a separate head: a tied weight cannot have two plans
        def __init__(self):
            super().__init__()
            self.body = make_model(is_last=False)
            self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens):
            return self.head(self.ln_f(self.body(tokens)))

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = WithHead()
    plan = {"body.wte": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    for i in range(LAYERS):
        plan |= {f"body.h.{i}.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
        plan |= {f"body.h.{i}.{name}": RowwiseParallel() for name in ("projection", "down")}
    parallelize_module(model, mesh, plan)
    inputs, targets = make_batch(SEQUENCES["tensor"])

    def passes():
        with loss_parallel():
            loss_of(model(inputs), targets).backward()

    return list(model.parameters()), passes


def pipeline_step(schedule):
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining
    rank, ranks = dist.get_rank(), dist.get_world_size()
    num_stages = ranks * SCHEDULES[schedule]
    parts, stages = [], []
    for index in range(rank, num_stages, ranks):
        small, rest = divmod(LAYERS, num_stages)
        begin = index * small + min(index, rest)
        parts.append(make_model(range(begin, begin + small + (index < rest)), index == 0, index == num_stages - 1))
        stages.append(pipelining.PipelineStage(parts[-1], index, num_stages, torch.device("cpu")))
    sequences = SEQUENCES["pipeline"]
    kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B, "interleaved-1f1b": pipelining.ScheduleInterleaved1F1B,
            "zero-bubble": pipelining.ScheduleInterleavedZeroBubble}[schedule]
    runner = kind(stages if SCHEDULES[schedule] > 1 else stages[0], sequences, loss_fn=loss_of)
    inputs, targets = make_batch(sequences)
    ends = dist.new_group([0, ranks - 1])

    def passes():
        runner.step(*([inputs] if rank == 0 else []), **({"target": targets} if rank == ranks - 1 else {}))
        for part in parts:  # averages the tied weight's gradient
            if part.wte is not None:
                dist.all_reduce(part.wte.weight.grad, group=ends)

    return [parameter for part in parts for parameter in part.parameters()], passes


def sent_mb():
    """The megabytes that this host (its network namespace) has sent to other hosts."""
    total = 0
    for device in set(os.listdir("/sys/class/net")) - {"lo"}:
        with open(f"/sys/class/net/{device}/statistics/tx_bytes") as sent:
            total += int(sent.read())
    return total / 1e6


def pss_mb():
    with open("/proc/self/smaps_rollup") as rollup:
        return int(re.search(r"^Pss: +(\d+)", rollup.read(), re.M)[1]) / 1024


def run_rank(kind, steps, threads):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if kind == "generate":
        return run_generate(steps)
    dist.init_process_group("gloo")
    if kind == "tensor":
        parameters, passes = tensor_step()
    elif kind in SCHEDULES:
        parameters, passes = pipeline_step(kind)
    else:
        parameters, passes = data_step(kind)
    optimizer = torch.optim.Adam(parameters, lr=1e-4)

    def take():
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            passes()
            optimizer.step()

    take()
    dist.barrier()
    begin, sent_before = time.perf_counter(), sent_mb()
    take()
    dist.barrier()
    milliseconds = (time.perf_counter() - begin) / steps * 1e3
    sent = (sent_mb() - sent_before) / steps
    memory = torch.tensor(pss_mb())
    dist.all_reduce(memory)
    if dist.get_rank() == 0:
        print(f"ms a step: {milliseconds:.4f}\nPSS of all ranks, MB: {memory.item():.2f}\nsent to other hosts, MB a step: {sent:.2f}", flush=True)
    dist.barrier()
    os._exit(0)  # FSDP2 on the CPU sometimes ends with std::terminate() at a normal exit (PyTorch 2.15)


def run_generate(steps):
    import torch

    class Past:
        def __init__(self):
            self.kept, self.count = torch.empty(2, 1, HEADS, TOKENS, WIDTH // HEADS), 0

        def add(self, *new):
            end = self.count + new[0].shape[2]
            for kept, one in zip(self.kept, new):
                kept[:, :, self.count:end] = one
            self.count = end
            return self.kept[0, :, :, :end], self.kept[1, :, :, :end]

    model = make_model().eval()
    prompt = torch.randint(VOCABULARY, (1, PROMPT))

    @torch.inference_mode()
    def generate():
        pasts, tokens, given, before = [Past() for _ in model.h], [prompt], prompt, 0
        while before + given.shape[1] < TOKENS:
            logits = model(given, pasts, before)
            before += given.shape[1]
            given = logits[:, -1].argmax(-1, keepdim=True)
            tokens.append(given)
        return torch.cat(tokens, 1)

    assert generate().shape[1] == TOKENS
    begin = time.perf_counter()
    for _ in range(steps):
        generate()
    print(f"tokens a second: {(TOKENS - PROMPT) * steps / (time.perf_counter() - begin):.4f}")


def read(output):
    found = [re.search(pattern, output) for pattern in (r"(?:ms a step|tokens a second): ([\d.]+)", r"MB: ([\d.]+)", r"passes: ([\d.]+)",
                                                        r"simulated: ([\d.]+)", r"MB a step: ([\d.]+)")]
    return [float(match[1]) if match else None for match in found]


def python_run(kind, ranks, threads, arguments):
    port = side_by_side.free_port()
    command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "--rank", kind, "--steps", str(arguments.steps), "--threads", str(threads)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                  env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                                           OMP_NUM_THREADS=str(threads))) for rank in range(ranks)]
    outputs = [process.communicate(timeout=900)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"a rank of Python's {kind} failed")
    return read(outputs[0])


def own_run(ranks, threads, arguments, *flags):
    command = [side_by_side.program(arguments.build, "apps", "paceline"), "run", "--nproc-per-node", str(ranks), "--threads-per-rank", str(threads),
               side_by_side.program(arguments.build, "benchmarks", "gpt_bench"), "--steps", str(arguments.steps), *map(str, flags)]
    return read(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=900).stdout)


def on_hosts(network, commands, environment):
    """Runs each command on its own host, with its own core if there are enough. Returns rank 0's output."""
    cores = sorted(os.sched_getaffinity(0))
    started = [side_by_side.start([*network.enter(number), "taskset", "-c", str(cores[number % len(cores)]), *command], environment(number))
               for number, command in enumerate(commands)]
    side_by_side.wait_all(started, 900)
    return read(started[0].output)


def python_on_hosts(network, kind, count, arguments):
    command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "--rank", kind, "--steps", str(arguments.steps)]
    return on_hosts(network, [command] * count, lambda rank: {
        "RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": network.address(0), "MASTER_PORT": "29433", "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0"})


def own_on_hosts(network, count, arguments, *flags):
    with tempfile.NamedTemporaryFile("w") as secret:  # only its owner may read it
        secret.write("gpt beside python " * 2)
        secret.flush()
        program = [side_by_side.program(arguments.build, "benchmarks", "gpt_bench"), "--steps", str(arguments.steps), *flags]
        run = [side_by_side.program(arguments.build, "apps", "paceline"), "run", "--nnodes", str(count), "--master-addr", network.address(0),
               "--nproc-per-node", "1", "--threads-per-rank", "1"]
        return on_hosts(network, [[*run, "--node-rank", str(rank), *program] for rank in range(count)],
                        lambda _: {"PACELINE_SECRET_FILE": secret.name})


def host_variants(network, arguments):
    count = arguments.ranks
    stages = {"DDP": ["--stage", "0"], "a copy a host": ["--stage", "3"], "hosts divide": ["--stage", "3", "--shard-across-hosts"]}
    own = {f"Paceline, {name}": lambda flags=flags: own_on_hosts(network, count, arguments, *flags) for name, flags in stages.items()}
    python = {f"Python, {kind}": lambda kind=kind: python_on_hosts(network, kind, count, arguments) for kind in ("ddp", "fsdp2")}
    return own | python | {"Paceline, alone": lambda: own_on_hosts(network, 1, arguments),
                           "Python, alone": lambda: python_on_hosts(network, "alone", 1, arguments)}


def print_exposed(got):
    print("| | exposed ms a step | MB sent by a host a step |\n|---|---|---|")
    for name, values in got.items():
        alone = got[name.split(",")[0] + ", alone"]
        if values is not alone:
            exposed = side_by_side.spread([value[0] - one[0] for value, one in zip(values, alone)])
            print(f"| {name} | {exposed} | {statistics.median(value[4] for value in values):.1f} |")


def variants(arguments):
    """The variants that have a turn: name -> function that runs it."""
    ranks, own, python = arguments.ranks, {}, {}
    sequences = ("--sequences", arguments.sequences or SEQUENCES[arguments.way])

    def add(name, kind, *flags, num_ranks=ranks, threads=1):
        own[f"Paceline, {name}"] = lambda: own_run(num_ranks, threads, arguments, *flags, *sequences)
        if kind:
            python[f"Python, {kind}"] = lambda: python_run(kind, num_ranks, threads, arguments)

    if arguments.way == "data":
        for stage in range(4):
            add(f"stage {stage}", {0: "ddp", 3: "fsdp2"}.get(stage), "--way", "data", "--stage", stage)
    elif arguments.way == "tensor":
        add("tensor", "tensor", "--way", "tensor")
    elif arguments.way == "pipeline" and arguments.cut:
        own_schedule = "1f1b" if arguments.cut.count("+") < ranks else "interleaved-1f1b"
        for schedule in ("gpipe", own_schedule, "zero-bubble", "searched"):
            add(schedule, None, "--way", "pipeline", "--schedule", schedule, "--cut", arguments.cut)
    elif arguments.way == "pipeline":
        for schedule, stages in SCHEDULES.items():
            add(schedule, schedule, "--way", "pipeline", "--schedule", schedule, "--stages-per-rank", stages)
        add("searched", None, "--way", "pipeline", "--schedule", "searched")
    else:
        add("generate", "generate", "--way", "generate", num_ranks=1)
    if arguments.way in ("tensor", "pipeline") and not arguments.cut:
        add("one rank", "one", "--way", "data", num_ranks=1, threads=ranks)
    return own if arguments.own else own | python


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?")
    parser.add_argument("--way", default="data", choices=list(SEQUENCES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gbit", type=float, default=1, help="of each host's link; 0: as fast as the machine is")
    parser.add_argument("--cut", help="layers of a pipeline's stages, as 4+2+1+3")
    parser.add_argument("--sequences", type=int, help="of a step, with --own or --cut")
    parser.add_argument("--own", action="store_true", help="without Python's turns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return run_rank(arguments.rank, arguments.steps, arguments.threads)
    with hosts.Hosts(arguments.gbit, arguments.ranks) if arguments.way == "hosts" else contextlib.nullcontext() as network:
        runs = host_variants(network, arguments) if network else variants(arguments)
        got = {name: [] for name in runs}
        for number in range(arguments.rounds):
            names = list(runs)
            for name in names[number % len(names):] + names[:number % len(names)]:
                got[name].append(runs[name]())
    peers = [name for name in runs if name.startswith("Python") or name.endswith(("one rank", "searched"))]
    links = f" with links of {arguments.gbit:g} Gbit/s" if network else ""
    print(f"{side_by_side.machine()}; {arguments.way}{links}, {arguments.ranks} ranks, {arguments.rounds} rounds\n")
    for what, unit in enumerate(("tokens a second" if arguments.way == "generate" else "ms a step", "MB of all ranks")):
        if what == 1 and arguments.way not in ("data", "hosts"):
            break
        print(f"| | {unit} | {' | '.join('to ' + peer for peer in peers)} |\n|---|---|{'---|' * len(peers)}")
        for name, values in got.items():
            own = [value[what] for value in values]
            ratios = [side_by_side.spread([a / b[what] for a, b in zip(own, got[peer])]) for peer in peers]
            print(f"| {name} | {side_by_side.spread(own)} | {' | '.join(ratios)} |")
        print()
    if network:
        print_exposed(got)
    for name, values in got.items():
        if values[0][3]:
            passes, simulated = ([value[part] for value in values] for part in (2, 3))
            ratios = side_by_side.spread([a / b for a, b in zip(passes, simulated)])
            print(f"{name}: passes of {side_by_side.spread(passes)} ms, simulated {side_by_side.spread(simulated)} ms; {ratios} of it")


main()
