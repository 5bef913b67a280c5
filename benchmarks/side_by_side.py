"""Functions that the benchmark scripts share: starting the programs that they compare, and medians with their spread."""
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def program(build, *path):
    """The full path of a built program. Exits with the command that builds it if it is missing."""
    full = os.path.join(ROOT, build, *path)
    if not os.access(full, os.X_OK):
        sys.exit(f"{full} was not found; build it: cmake --preset release && cmake --build --preset release")
    return full


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def spread(values, digits=2):
    """'median [min, max]'"""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def read_metrics(path):
    """The records of a JSON Lines file, by event."""
    events = {}
    with open(path) as f:
        for line in f:
            record = json.loads(line)
            events.setdefault(record["event"], []).append(record)
    return events


def wait_all(processes, timeout):
    """Exits with the output of the first process that failed; leaves none running. Each process gets an attribute `output`."""
    deadline = time.monotonic() + timeout
    try:
        for process in processes:
            process.output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if process.returncode != 0:
                sys.exit(f"{' '.join(process.args)} ended with {process.returncode}:\n{process.output}")
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(process.args)} did not end within {timeout} s")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def start(command, env=None, cpus=None):
    """`cpus`: the cores that the process may use; all if not given."""
    pin = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
    return subprocess.Popen(command, env={**os.environ, **(env or {})}, preexec_fn=pin, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def machine():
    """One line about the machine of the measurement."""
    with open("/proc/cpuinfo") as f:
        model = re.search(r"model name\s*:\s*(.*)", f.read()).group(1)
    return f"{model}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start"
