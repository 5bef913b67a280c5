#!/usr/bin/python3
"""Tables of rows, in turns with PyTorch's ways of sharing them.

    /usr/bin/python3 benchmarks/tables_beside_python.py build/release --what rows          # a row server over torch RPC
    /usr/bin/python3 benchmarks/tables_beside_python.py build/release --what recommender   # Hogwild: shared tensors
    /usr/bin/python3 benchmarks/tables_beside_python.py build/release --what auc           # accuracy by consistency; no PyTorch

rows: pull and push of 1,024 ids of 1 million rows of 64 floats with row-wise Adagrad, as tables_bench measures it.
recommender: train_recommender's DLRM with its ids and batch, two trainers. In PyTorch the rows are one tensor that both trainers map and
update without a lock; the dense part is DistributedDataParallel over Gloo. TorchRec divides the tables between the trainers; it has turns if
the Python that runs this script has it:

    pip install torch==2.14.1 numpy fbgemm-gpu-cpu==1.9.0 tensordict torchmetrics==1.0.3 tqdm pyre-extensions
    pip install --no-deps torchrec==1.9.2    # it names fbgemm-gpu, which needs CUDA
"""
import argparse
import importlib.util
import json
import os
import re
import sys
import time

from side_by_side import free_port, machine, program, spread, start, wait_all

LIMIT_S = 600
ROWS, WIDTH, BATCH, SKEW = 1_000_000, 64, 1024, 1.05
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USE_LIBUV": "0"}


# ---- rows ----

class RowServer:
    """What a user of torch RPC writes: rows and a sum of squares for each, behind a lock."""

    def __init__(self):
        import threading
        import torch
        torch.set_num_threads(1)
        self.rows = torch.full((ROWS, WIDTH), 0.01)
        self.squares = torch.full((ROWS,), 0.01)
        self.lock = threading.Lock()

    def pull(self, ids):
        with self.lock:
            return self.rows.index_select(0, ids)

    def push(self, ids, gradients):
        with self.lock:
            adagrad_(self.rows, self.squares, ids, gradients)


def adagrad_(rows, squares, ids, gradients):
    """A step of row-wise Adagrad: gradients of equal ids are added first."""
    import torch
    unique, places = ids.unique(return_inverse=True)
    summed = torch.zeros(unique.numel(), gradients.size(1)).index_add_(0, places, gradients)
    squares.index_add_(0, unique, summed.square().mean(1))
    rows.index_add_(0, unique, summed / (squares.index_select(0, unique).sqrt() + 1e-10).unsqueeze(1), alpha=-0.01)


def draw_ids(count):
    import torch
    weights = torch.arange(1, ROWS + 1, dtype=torch.double).pow(-SKEW).cumsum(0)
    ranks = torch.searchsorted(weights, torch.rand(count * BATCH, dtype=torch.double) * weights[-1])
    return (ranks * 2_654_435_761 % ROWS).view(count, BATCH)


def measure_rpc(_):
    import torch
    import torch.distributed.rpc as rpc
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
        init_method="env://", **({"_transports": ["uv"]} if os.environ["OVER"] == "tcp" else {})))
    if rank == 0:
        server = rpc.remote("worker1", RowServer)
        batches, gradients = draw_ids(200), torch.full((BATCH, WIDTH), 1e-3)
        for ids in batches[:20]:
            server.rpc_sync().pull(ids), server.rpc_sync().push(ids, gradients)
        begin = time.perf_counter()
        for ids in batches:
            server.rpc_sync().pull(ids), server.rpc_sync().push(ids, gradients)
        print(json.dumps({"us": (time.perf_counter() - begin) / len(batches) * 1e6}), flush=True)
    rpc.shutdown()


def rpc_us(over):
    env = {**THREADS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OVER": over}
    command = [sys.executable, os.path.abspath(__file__), "-", "--part", "rpc"]
    return result_of([start(command, {**env, "RANK": str(rank)}) for rank in range(2)])["us"]


def own_us(build):
    """Microseconds of a pull and a push of one worker: in the host's memory, and over TCP."""
    process = start([program(build, "benchmarks", "tables_bench"), "--rows", str(ROWS), "--rounds", "1"], THREADS)
    wait_all([process], LIMIT_S)
    both = {line.split("pull")[0].strip(): float(re.search(r"both +([\d.]+)", line).group(1)) for line in process.output.splitlines()}
    return both["array in one process"], both["table, 1 worker, skew 1.05"], both["server over TCP"]


def compare_rows(options):
    own, rpc = [], []
    for _ in range(options.rounds):
        own.append(own_us(options.build))
        rpc.append((rpc_us("shm"), rpc_us("tcp")))
    array, host, tcp = zip(*own)
    python_host, python_tcp = zip(*rpc)
    print("| | us | torch RPC, us | ratio |\n|---|---|---|---|")
    print(f"| array in one process | {spread(array)} | | {spread([b / a for a, b in zip(array, host)])} times as fast as a table |")
    print(f"| one host | {spread(host)} | {spread(python_host)} | {spread([b / a for a, b in zip(host, python_host)])} |")
    print(f"| over TCP | {spread(tcp)} | {spread(python_tcp)} | {spread([b / a for a, b in zip(tcp, python_tcp)])} |")


# ---- recommender ----

FIELDS, FIELD_ROWS, ROW_WIDTH, DENSE, HIDDEN, SAMPLES = 8, 20_000, 16, 4, 64, 200_000


def make_dlrm():
    import torch
    from torch import nn

    class Dlrm(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.tril_indices(FIELDS + 1, FIELDS + 1, -1)
            self.bottom = nn.Sequential(nn.Linear(DENSE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, ROW_WIDTH), nn.ReLU())
            self.top = nn.Sequential(nn.Linear(ROW_WIDTH + self.first.numel(), HIDDEN), nn.ReLU(),
                                     nn.Linear(HIDDEN, HIDDEN // 2), nn.ReLU(), nn.Linear(HIDDEN // 2, 1))

        def forward(self, dense, rows):
            features = self.bottom(dense)
            vectors = torch.cat([features.unsqueeze(1), rows], 1)
            pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
            return self.top(torch.cat([features, pairs], 1)).squeeze(1)
    return Dlrm()


def draw_clicks(batch):
    """A trainer's ids of each field from 0, dense features and labels, for each step of an epoch."""
    import torch
    steps = SAMPLES // 2 // batch
    weights = torch.arange(1, FIELD_ROWS + 1, dtype=torch.double).pow(-SKEW)
    ids = torch.multinomial(weights, steps * batch * FIELDS, replacement=True).view(steps, batch, FIELDS)
    return ids * 2_654_435_761 % FIELD_ROWS, torch.randn(steps, batch, DENSE), torch.randint(2, (steps, batch)).float()


def train_hogwild(rank, rows, squares, batch, results):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo", init_method="env://")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(make_dlrm())
    adam = torch.optim.Adam(model.parameters(), lr=0.002)
    torch.manual_seed(rank)
    ids, dense, labels = draw_clicks(batch)
    ids += torch.arange(FIELDS) * FIELD_ROWS
    dist.barrier()
    begin = time.perf_counter()
    for flat, features, clicked in zip(ids.flatten(1), dense, labels):
        pulled = rows.index_select(0, flat).view(batch, FIELDS, ROW_WIDTH).requires_grad_()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(features, pulled), clicked)
        adam.zero_grad()
        loss.backward()
        adam.step()
        adagrad_(rows, squares, flat, pulled.grad.view(-1, ROW_WIDTH))
    dist.barrier()
    if rank == 0:
        results.put(2 * labels.numel() / (time.perf_counter() - begin))


def measure_hogwild(batch):
    import torch
    import torch.multiprocessing as mp
    rows = torch.full((FIELDS * FIELD_ROWS, ROW_WIDTH), 0.01).share_memory_()
    squares = torch.full((FIELDS * FIELD_ROWS,), 0.01).share_memory_()
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    trainers = [context.Process(target=train_hogwild, args=(rank, rows, squares, batch, results)) for rank in range(2)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    print(json.dumps({"rate": results.get()}), flush=True)


def hogwild_rate(batch):
    env = {**THREADS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    return result_of([start([sys.executable, os.path.abspath(__file__), "-", "--part", "hogwild", "--batch", str(batch)], env)])["rate"]


def measure_torchrec(batch):
    """Each trainer has whole tables, which the planner chooses among table-wise plans: the fastest of those that a CPU can have."""
    import torch
    import torch.distributed as dist
    import torchrec
    from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    fields = [f"field{i}" for i in range(FIELDS)]

    class Recommender(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = make_dlrm()
            self.rows = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=[
                torchrec.EmbeddingBagConfig(name=field, feature_names=[field], num_embeddings=FIELD_ROWS, embedding_dim=ROW_WIDTH)
                for field in fields])

        def forward(self, ids, dense):
            return self.dense(dense, self.rows(ids).values().view(-1, FIELDS, ROW_WIDTH))

    torch.manual_seed(0)
    model = Recommender()
    apply_optimizer_in_backward(torchrec.optim.RowWiseAdagrad, model.rows.parameters(), {"lr": 0.05})
    sharders = [EmbeddingBagCollectionSharder()]
    planner = EmbeddingShardingPlanner(Topology(2, "cpu"), constraints={field: ParameterConstraints(["table_wise"], ["fused"]) for field in fields})
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    adam = torch.optim.Adam((value for name, value in model.named_parameters() if ".rows." not in name), lr=0.002, fused=True)

    torch.manual_seed(dist.get_rank())
    ids, dense, labels = draw_clicks(batch)
    ids = [torchrec.KeyedJaggedTensor(fields, step.t().flatten(), lengths=torch.ones(step.numel(), dtype=torch.long)) for step in ids]

    def train_on(steps):
        for step in steps:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids[step], dense[step]), labels[step])
            adam.zero_grad()
            loss.backward()
            adam.step()

    train_on(range(5))
    dist.barrier()
    begin = time.perf_counter()
    train_on(range(len(ids)))
    dist.barrier()
    print(json.dumps({"rate": 2 * labels.numel() / (time.perf_counter() - begin)}), flush=True)


def torchrec_rate(batch):
    env = {**THREADS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "-", "--part", "torchrec", "--batch", str(batch)]
    return result_of([start(command, {**env, "RANK": str(rank)}) for rank in range(2)])["rate"]


def train(build, ranks, flags):
    """The AUC and the samples a second of train_recommender."""
    process = start([program(build, "apps", "paceline"), "run", "--nproc-per-node", str(ranks), "--threads-per-rank", str(2 // ranks),
                     program(build, "examples", "train_recommender"), *flags], {"LD_LIBRARY_PATH": ""})
    wait_all([process], LIMIT_S)
    return (float(re.search(r"AUC +([\d.]+) \(", process.output).group(1)),
            float(re.search(r"throughput +([\d.]+) samples", process.output).group(1)))


def compare_recommender(options):
    with_torchrec = importlib.util.find_spec("torchrec") is not None
    for batch in (256, 1024):
        ways = {"two trainers": lambda: train(options.build, 2, ["--batch-size", str(batch)])[1],
                "one process, 2 threads": lambda: train(options.build, 1, ["--batch-size", str(2 * batch)])[1],
                "Hogwild": lambda: hogwild_rate(batch)} | ({"TorchRec": lambda: torchrec_rate(batch)} if with_torchrec else {})
        rates = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, measure in ways.items():
                rates[way].append(measure())
        print(f"| batches of {batch} | samples/s | two trainers to it |\n|---|---|---|")
        for way, values in rates.items():
            print(f"| {way} | {spread(values, 0)} | {spread([a / b for a, b in zip(rates['two trainers'], values)])} |", flush=True)
        print()


def compare_auc(options):
    modes = ["bounded:0", "bounded:1", "bounded:4", "bounded:16", "asynchronous"]
    differences = {mode: [] for mode in modes}
    for seed in range(options.rounds):
        common = ["--seed", str(seed), "--epochs", str(options.epochs)]
        one, _ = train(options.build, 1, common + ["--batch-size", "512"])
        for mode in modes:
            auc, _ = train(options.build, 2, common + ["--consistency", mode])
            differences[mode].append(auc - one)
        print(f"seed {seed}: one process {one:.4f}, " + ", ".join(f"{mode} {values[-1]:+.4f}" for mode, values in differences.items()), flush=True)
    print("\n| consistency | AUC, two trainers less one process |\n|---|---|")
    for mode, values in differences.items():
        print(f"| {mode} | {spread(values, 4)} |")


def result_of(processes):
    wait_all(processes, LIMIT_S)
    return next(json.loads(line) for line in processes[0].output.splitlines() if line.startswith("{"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="for example build/release")
    parser.add_argument("--what", choices=["rows", "recommender", "auc"], default="rows")
    parser.add_argument("--rounds", type=int, default=5, help="of --what auc: seeds")
    parser.add_argument("--epochs", type=int, default=2, help="of --what auc")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return {"rpc": measure_rpc, "hogwild": measure_hogwild, "torchrec": measure_torchrec}[options.part](options.batch)
    print(f"{machine()}; {options.rounds} rounds\n", flush=True)
    {"rows": compare_rows, "recommender": compare_recommender, "auc": compare_auc}[options.what](options)


if __name__ == "__main__":
    main()
