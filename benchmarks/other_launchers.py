"""The launchers with which launch_bench compares paceline, if they are installed."""
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import time

# Debian's Open MPI refuses to run as root, and with more ranks than cores, unless told otherwise. Binding would cost it time.
MPIRUN = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]

# Debian's torch 1.13 does not start under Python 3.11 with its own default, because no member of an enum is 0 there. So only the (missing)
# rank 9 is redirected and shown.
WITHOUT_REDIRECTION = ["--redirects", "9:1", "--tee", "9:1"]


# For one launch. Open MPI 4.1.4 sometimes waits for minutes after many ranks have ended at the same time.
LIMIT_S = 20


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
    """Maps names to functions that return the command to start `count` times `true`; and a line for each launcher that is not installed."""
    found, missing = {}, []
    # torchrun checks only every 5 s by default whether its ranks have ended.
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
    """Runs one launch; returns whether it ended within LIMIT_S. Throws if the launcher fails. Sets OMP_NUM_THREADS, because torchrun would
    warn about it 64 times."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _mpirun_and_a_death(options):
    """Kills one of two ranks that sleep for 10 s. Returns the seconds until the other rank's end, the exit code, and how many ranks were
    started in total."""
    command, _ = _mpirun()
    prefix = command(2)[:-3]
    job = subprocess.Popen([*prefix, *options, "-n", "2", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK $$; exec sleep 10"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    ranks = dict(map(int, job.stdout.readline().split()) for _ in range(2))
    with os.fdopen(os.pidfd_open(ranks[0])) as other:
        begin = time.monotonic()
        os.kill(ranks[1], signal.SIGKILL)
        select.select([other], [], [])
        seconds = time.monotonic() - begin
    more = job.communicate(timeout=60)[0].splitlines()
    return seconds, job.returncode, 2 + len(more)


def what_mpirun_does_with_a_death():
    """Two lines, without and with mpirun's options for recovery; or why there are none."""
    if problem := _mpirun()[1]:
        return problem
    lines = []
    for options in [], ["--enable-recovery", "--max-restarts", "3"]:
        seconds, code, starts = _mpirun_and_a_death(options)
        lines.append(f"{' '.join(['mpirun', *options])}, one rank of two killed, both sleep 10 s: the other one ends {seconds:.2f} s after it, "
                     f"exit code {code}, {starts} ranks started in all")
    return "\n".join(lines)
