"""The runs of benchmarks/book. Each part gives a section: a title, a table, notes, and perhaps lines to draw."""
import math
import os
import re
import statistics
import subprocess
import sys

from hosts import Hosts
from side_by_side import program, read_metrics, start, wait_all

LIMIT_S = 6 * 3600
CORES = len(os.sched_getaffinity(0))
BATCH, RATE = 32, 1e-5
HOST_BATCH = 128  # the batch in chapter 11
LAMB_RATE = 1e-3
NOISE = 10  # ranks whose batches together have the gradients' noise scale: 320 images
WITHIN_POINTS = 0.3
CIFAR_RECORD = 3073

# The book's seconds, on 16 cores, and its accuracies in per cent.
BOOK_THREADS = {1: 311, 2: 189, 4: 119, 8: 93, 12: 73, 16: 73}
BOOK_LAYOUTS = {1: ("1 x 16", 73, 45.34), 2: ("2 x 8", 58, 44.01), 4: ("4 x 4", 45, 40.11), 8: ("8 x 2", 37, 38.63)}
BOOK_HOSTS_S = (109, 64)


def count_images(folder):
    """The number of training images."""
    inner = os.path.join(folder, "cifar-10-batches-bin")
    files = [os.path.join(inner if os.path.isdir(inner) else folder, f"data_batch_{i}.bin") for i in range(1, 6)]
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        sys.exit(f"{missing[0]} was not found; --data-dir is the folder of CIFAR-10's binary version")
    return sum(map(os.path.getsize, files)) // CIFAR_RECORD


class Runner:
    """Runs train_image, each different run only once."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.images = count_images(options.data_dir)
        self.records, self.number, self.known = [], 0, {}

    def steps(self, batch):
        """The number of steps of a whole run."""
        all_steps = self.options.epochs * -(-self.images // batch)
        return min(all_steps, 8) if self.options.quick else all_steps

    def launcher(self):
        return program(self.options.build, "apps", "paceline")

    def train_image(self, *flags):
        return [program(self.options.build, "examples", "train_image"), "--dataset", "cifar10", "--data-dir", self.options.data_dir,
                *map(str, flags)]

    def metrics_file(self):
        self.number += 1
        return os.path.join(self.folder, f"{self.number}.jsonl")

    def train(self, ranks, threads, seed, *flags):
        """The last record of a run: seconds, accuracy, samples_per_second, ..."""
        key = (ranks, threads, seed, *map(str, flags))
        if key not in self.known:
            metrics = self.metrics_file()
            command = [self.launcher(), "run", "--nproc-per-node", str(ranks), "--threads-per-rank", str(threads),
                       *self.train_image("--seed", seed, "--metrics", metrics, *flags)]
            wait_all([start(command)], LIMIT_S)
            self.known[key] = self.take(metrics, ranks=ranks, threads=threads, seed=seed, flags=" ".join(key[3:]))
        return self.known[key]

    def take(self, metrics, **about):
        end = read_metrics(metrics)["end"][0]
        self.records.append({**about, **end})
        return end

    def over_seeds(self, ranks, threads, *flags):
        """The median of the seconds, and the mean of the accuracies in per cent."""
        ends = [self.train(ranks, threads, seed, *flags) for seed in range(self.options.seeds)]
        return statistics.median(e["seconds"] for e in ends), 100 * statistics.mean(e["accuracy"] for e in ends)

    def replica_counts(self):
        return (1, 2) if self.options.quick else (1, 2, 4, 8)


def threads_of(ranks):
    return max(1, CORES // ranks)


def kept_batch(runner, ranks, rate=RATE, *more):
    """The book's flags: each rank keeps its batch size, so the batch of a step grows with the ranks."""
    return ["--lr", rate, "--weight-decay", 0.005, "--batch-size", BATCH, "--max-steps", runner.steps(BATCH * ranks),
            "--epochs", runner.options.epochs, *more]


def growth(ranks):
    """The factor for the rate with which fewer steps of larger batches make the same progress. Adam and LAMB divide a gradient by its root
    mean square, in which the squares of signal and noise are as 1 to NOISE / ranks. So a step makes the progress rate x sqrt(ranks /
    (ranks + NOISE)), and there are 1 / ranks as many steps. The factor is sqrt(ranks) while noise dominates, and ranks when it no
    longer does."""
    return math.sqrt(ranks * (ranks + NOISE) / (1 + NOISE))


def warmed_up(runner, ranks):
    return ["--lr-schedule", "cosine", "--warmup", max(1, runner.steps(BATCH * ranks) // 20)]


# The name of a setting, and its flags for a number of ranks.
CURES = {
    "batch of each rank kept (the book)": kept_batch,
    "global batch kept": lambda runner, ranks: ["--lr", RATE, "--weight-decay", 0.005, "--global-batch-size", BATCH,
                                                "--max-steps", runner.steps(BATCH), "--epochs", runner.options.epochs],
    "Adam, rate grown, warm-up, cosine": lambda runner, ranks: kept_batch(runner, ranks, 2 * RATE * growth(ranks), *warmed_up(runner, ranks)),
    "LAMB, rate grown, warm-up, cosine": lambda runner, ranks: kept_batch(runner, ranks, LAMB_RATE * growth(ranks), "--optimizer", "lamb",
                                                                                *warmed_up(runner, ranks)),
}


def threads(runner):
    counts = [n for n in BOOK_THREADS if n <= CORES]
    rows, first = [], None
    for count in counts:
        seconds, accuracy = runner.over_seeds(1, count, *kept_batch(runner, 1))
        first = first or seconds
        rows.append([count, f"{seconds:.1f}", f"{first / seconds:.2f}", f"{accuracy:.2f}%", BOOK_THREADS[count],
                     f"{BOOK_THREADS[1] / BOOK_THREADS[count]:.2f}"])
    return {"title": "Table 9.1: one process, 1 to N threads", "columns": ["threads", "seconds", "speed-up", "accuracy", "book, s",
                                                                           "book, speed-up"],
            "rows": rows, "notes": ["The book's accuracy is 45.34%, its machine has 16 cores."]}


def layouts(runner):
    rows, first = [], None
    for ranks in runner.replica_counts():
        count = threads_of(ranks)
        seconds, accuracy = runner.over_seeds(ranks, count, *kept_batch(runner, ranks))
        first = first or seconds
        name, book_s, book_accuracy = BOOK_LAYOUTS[ranks]
        fits = ranks * count <= CORES
        rows.append([f"{ranks} x {count}", f"{seconds:.1f}" if fits else f"({seconds:.1f})", f"{first / seconds:.2f}" if fits else "-",
                     f"{accuracy:.2f}%", name, book_s, f"{BOOK_LAYOUTS[1][1] / book_s:.2f}", f"{book_accuracy:.2f}%"])
    return {"title": "Table 9.2: processes x threads, the batch of each process kept",
            "columns": ["here", "seconds", "speed-up", "accuracy", "book", "book, s", "book, speed-up", "book, accuracy"], "rows": rows,
            "notes": ["In brackets: more processes than cores, so the time says nothing."]}


def replicas(runner):
    counts = runner.replica_counts()
    rows, lines, notes = [], {}, []
    for name, flags in CURES.items():
        accuracies = [runner.over_seeds(ranks, threads_of(ranks), *flags(runner, ranks))[1] for ranks in counts]
        range_ = max(accuracies) - min(accuracies)
        rows.append([name, *(f"{a:.2f}%" for a in accuracies), f"{range_:.2f}"])
        lines[name] = list(zip(counts, accuracies))
        if flags is not kept_batch:
            notes.append(f"{name}: {'within' if range_ <= WITHIN_POINTS else 'NOT within'} {WITHIN_POINTS} points.")
    book = [BOOK_LAYOUTS[ranks][2] for ranks in counts]
    rows.append(["the book, batch of each rank kept", *(f"{a:.2f}%" for a in book), f"{max(book) - min(book):.2f}"])
    return {"title": f"What replicas cost in accuracy, and what cures it ({runner.options.epochs} epochs)",
            "columns": ["", *(f"{n} replica{'s' * (n > 1)}" for n in counts), "points apart"], "rows": rows, "notes": notes,
            "lines": {**lines, "the book": list(zip(counts, book))}}


# --- Chapter 11 ---

def on_hosts(runner, network, count, cores, metrics, *flags):
    """Runs one rank on each of the first `count` hosts, which divide the cores. Returns images per second."""
    secret = os.path.join(runner.folder, "secret")
    if not os.path.exists(secret):
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write(os.urandom(32).hex())
    commands = []
    for number in range(count):
        own = ",".join(map(str, cores[number]))
        commands.append([*network.enter(number), "taskset", "-c", own, runner.launcher(), "run", "--nnodes", str(count), "--node-rank", str(number),
                         "--master-addr", network.address(0), "--nproc-per-node", "1", "--threads-per-rank", str(len(cores[number])),
                         *runner.train_image("--metrics", metrics, *flags)])
    wait_all([start(command, {"PACELINE_SECRET_FILE": secret}) for command in commands], LIMIT_S)
    return runner.take(metrics, hosts=count, gbit=network.gbit, flags=" ".join(map(str, flags)))["samples_per_second"]


def hosts(runner):
    title = "Chapter 11: EfficientNet on CIFAR-10, two hosts"
    columns = ["link", "one host, images/s", "two hosts, images/s", "speed-up", "the book's speed-up"]
    if os.geteuid() != 0 or CORES < 2:
        return {"title": title, "columns": columns, "rows": [], "notes": ["Not measured: needs root and two cores."]}
    half = CORES // 2
    usable = sorted(os.sched_getaffinity(0))
    cores = [usable[:half], usable[half:2 * half]]
    flags = ["--model", "efficientnet_b0", "--batch-size", 32 if runner.options.quick else HOST_BATCH, "--max-steps",
             2 if runner.options.quick else 20]
    rows = []
    for gbit, more in ((1, []), (1, ["--hook", "bf16"]), (10, [])):
        with Hosts(gbit) as network:
            one = on_hosts(runner, network, 1, cores, runner.metrics_file(), *flags)
            two = on_hosts(runner, network, 2, cores, runner.metrics_file(), *flags, *more)
        rows.append([f"{gbit} Gbit/s{', bf16 gradients' if more else ''}", f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}",
                     f"{BOOK_HOSTS_S[0] / BOOK_HOSTS_S[1]:.2f} (8 and 16 GPUs)"])
    return {"title": title, "columns": columns, "rows": rows,
            "notes": [f"EfficientNet-B0, batch {flags[3]} a host, {half} core(s) a host; hosts are network namespaces of this machine."]}


# --- Figure 8.1 ---

def advice(runner):
    rows, notes = [], []
    for name, global_batch, flags in (("CNN (Tables 9.1 and 9.2)", 64, ["--model", "cnn", "--lr", RATE]),
                                      ("EfficientNet-B0 (chapter 11)", 64, ["--model", "efficientnet_b0"])):
        command = [runner.launcher(), "advise", "--seconds", "1" if runner.options.quick else "10", "--global-batch", str(global_batch), "--",
                   *runner.train_image(*flags, "--epochs", 100000), "--batch-size", "{batch}"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S).stdout
        answer = re.search(r"^advice: (.*)", output, re.M)
        rows.append([name, answer[1] if answer else "none: see below"])
        notes.append(f"{name}:\n{output.strip()}")
    return {"title": "Figure 8.1: how many processes, how many threads? What `paceline advise` says", "columns": ["job", "advice"], "rows": rows,
            "notes": notes}
