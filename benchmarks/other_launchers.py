"""The launchers that launch_bench compares paceline with, as far as they are installed."""
import importlib.util
import os
import shutil
import subprocess

# Debian's Open MPI refuses root, and more ranks than cores, unless told otherwise; binding would cost it time.
MPIRUN = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]

# Debian's torch 1.13 does not start under Python 3.11 with its own default, as no member of an enum is 0 there; so rank 9 alone is
# redirected, and shown.
WITHOUT_REDIRECTION = ["--redirects", "9:1", "--tee", "9:1"]


def _torchrun(*options):
    if importlib.util.find_spec("torch") is None:
        return None, "torchrun: python3-torch is not installed"
    prefix = ["/usr/bin/python3", "-m", "torch.distributed.run", "--standalone", "--no_python", *WITHOUT_REDIRECTION, *options]
    return (lambda count: [*prefix, "--nproc_per_node", str(count), "true"]), None


def _mpirun():
    command = shutil.which("mpirun.openmpi")
    if command is None:
        return None, "mpirun: Open MPI (openmpi-bin) is not installed"
    return (lambda count: [command, *MPIRUN, "-n", str(count), "true"]), None


def find():
    """From names to what makes the command that starts so many `true`; and a line for each one that is not there."""
    found, missing = {}, []
    # torchrun looks every 5 s whether its ranks have ended, unless it is told otherwise.
    for name, look, options in (("torchrun (python3-torch)", _torchrun, ()),
                                ("torchrun --monitor_interval 0.1", _torchrun, ("--monitor_interval", "0.1")),
                                ("mpirun (Open MPI)", _mpirun, ())):
        command, problem = look(*options)
        if problem and problem not in missing:
            missing.append(problem)
        if command:
            found[name] = command
    return found, missing


def start_and_wait(command):
    """One launch; fails when the launcher does. torchrun's warning about OMP_NUM_THREADS is not worth reading 64 times."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, timeout=120)
