"""The jobs that survive_bench kills: the same CNN on the same data, with two ranks, under launchers that start them again."""
import hashlib
import importlib.util
import os
import re
import secrets
import signal
import struct
import subprocess
import sys
import time

from other_launchers import WITHOUT_REDIRECTION
from side_by_side import ROOT, free_port, program

LONGEST = 60
FOREVER = 10**9  # a number of steps
PYTHON = "/usr/bin/python3"  # the Python of Debian's torch


def gauge(folder, rank):
    """(pid, steps) from a file in the format of telemetry/FORMAT.md; None if there is none."""
    try:
        with open(f"{folder}/rank-{rank:03}.steps", "rb") as file:
            content = file.read(64)
    except FileNotFoundError:
        return None
    if len(content) < 64 or content[:8] != b"PLSTEPS1":
        return None
    return struct.unpack_from("<QQ", content, 8)


def wait_for(condition, what, longest=LONGEST):
    end = time.monotonic() + longest
    while not (found := condition()):
        if time.monotonic() > end:
            sys.exit(f"{what} did not come within {longest} s")
        time.sleep(0.0005)
    return found


class Paceline:
    name = "paceline run"
    polls = 0.1  # kills are spread over this interval
    environment = {}

    def __init__(self, options):
        self.options = options

    def command(self, folder, steps, *launch):
        """Two ranks on one machine."""
        return self.on_hosts(folder, steps, "--nproc-per-node", "2", "--max-restarts", "100000", *launch) + [
            "--memory-checkpoint-every", str(self.options.memory_every)]

    def on_hosts(self, folder, steps, *launch):
        return [program(self.options.build, "apps", "paceline"), "run", *launch,
                program(self.options.build, "examples", "train_image"), "--dataset", "cifar10", "--data-dir", self.options.data,
                "--lr", "1e-5", "--weight-decay", "0.005", "--checkpoint-dir", f"{folder}/run", "--epochs", "100000",
                "--max-steps", str(steps), "--checkpoint-every", str(self.options.save_every)]

    @staticmethod
    def two_hosts(endpoint, first):
        return ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "100000", "--threads-per-rank", "1",
                "--rdzv-endpoint", endpoint, "--rdzv-conf", f"is_host={'true' if first else 'false'}"]

    @staticmethod
    def between_hosts(folder):
        """Variables of a job whose hosts share `folder`."""
        path = f"{folder}/secret"
        if not os.path.exists(path):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        return {"PACELINE_SECRET_FILE": path}

    def only_load(self):
        return [program(self.options.build, "examples", "train_image"), "--help"]

    def weights(self, folder):
        """The newest checkpoint's weights."""
        newest = max((name for name in os.listdir(f"{folder}/run") if re.fullmatch(r"step-\d+", name)),
                     key=lambda name: int(name.split("-")[1]))
        exported = f"{folder}/weights.safetensors"
        subprocess.run([program(self.options.build, "apps", "paceline"), "checkpoint", "export", "--weights",
                        f"{folder}/run/{newest}", exported], check=True, stdout=subprocess.DEVNULL)
        with open(exported, "rb") as file:
            return newest, hashlib.sha256(file.read()).hexdigest()


class Torchrun:
    """python_restarting.py under Debian's torchrun, which checks its ranks every `polls` seconds."""
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

    def __init__(self, options, polls):
        self.options, self.polls = options, polls
        self.name = f"torchrun --monitor_interval {polls:g}" + (" (the default)" if polls == 5 else "")

    def command(self, folder, steps, *launch):
        return self.on_hosts(folder, steps, "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                             f"localhost:{free_port()}", *launch)

    def on_hosts(self, folder, steps, *launch):
        return [PYTHON, "-m", "torch.distributed.run", "--monitor_interval", str(self.polls), "--max_restarts", "100000",
                *WITHOUT_REDIRECTION, *launch, f"{ROOT}/benchmarks/python_restarting.py", "--data-dir", self.options.data,
                "--dir", folder, "--save-every", str(self.options.torch_save_every), "--steps", str(steps)]

    @staticmethod
    def two_hosts(endpoint, first):
        return ["--nnodes", "1:2", "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint,
                "--rdzv_id", "survive", "--rdzv_conf", f"is_host={int(first)}"]

    @staticmethod
    def between_hosts(_):
        return {"GLOO_SOCKET_IFNAME": "eth0"}

    def only_load(self):
        return [PYTHON, "-c", "import torch"]

    @staticmethod
    def weights(folder):
        with open(f"{folder}/weights") as file:
            return "rank 0", file.read()


def torchruns(options, polls):
    """One contestant for each interval. Exits if Debian's torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        sys.exit("--peer torchrun: python3-torch is not installed (apt-get install python3-torch)")
    return [Torchrun(options, interval) for interval in polls]


def start_job(command, folder, environment):
    """Starts the job in its own session; its output is written to `folder`/log."""
    os.makedirs(f"{folder}/flights", exist_ok=True)
    with open(f"{folder}/log", "a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                                env={**os.environ, "PACELINE_FLIGHT_DIR": f"{folder}/flights", **environment})


def end_job(job):
    """Ends the job if it still runs. torchrun ends its ranks when asked; if it does not, the whole group is killed."""
    if job.poll() is not None:
        return
    job.terminate()
    try:
        job.wait(LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
