"""Jobs of enduring_program under `paceline run`, for the programs in this folder: starts them in several ways, freezes them, kills them."""
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time

LONGEST = 120  # seconds; the longest wait for anything
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exits through Job.__exit__, which ends the job's own sessions


def processes_with(variable):
    """The pids of all processes that have this environment variable ("NAME=value"), in any session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"{variable}\0".encode() in file.read():
                    found.append(int(name))
        except OSError:
            pass  # it has ended
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def gauge(flights, rank):
    """(pid, steps) of the rank's step gauge (telemetry/FORMAT.md); None if it has none yet."""
    try:
        with open(f"{flights}/rank-{rank:03}.steps", "rb") as file:
            content = file.read(64)
    except FileNotFoundError:
        return None
    return struct.unpack_from("<QQ", content, 8) if len(content) == 64 and content[:8] == b"PLSTEPS1" else None


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Program:
    """The job: the command `paceline`, the program of the ranks, its number of steps and the milliseconds of a step."""

    def __init__(self, paceline, rank, steps, pace):
        self.paceline, self.rank, self.steps, self.pace = paceline, rank, steps, pace

    def words(self, folder, pace=None):
        return [self.rank, str(self.steps), str(self.pace if pace is None else pace), folder]


class Job:
    """The launchers of one job in `folder`. Use it in a `with` statement, which ends all processes of the job."""

    def __init__(self, program, folder, variables=None):
        self.program, self.folder, self.number = program, folder, secrets.token_hex(8)
        self.flights = f"{folder}/flights"
        os.makedirs(self.flights, exist_ok=True)
        self.variables = {**os.environ, "ENDURING_JOB": self.number, "PACELINE_FLIGHT_DIR": self.flights, **(variables or {})}
        self.launchers, self.frozen = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        left = self.processes()
        while left:
            send(left, signal.SIGKILL)
            for launcher in self.launchers:
                launcher.poll()
            left = self.processes()
            time.sleep(0.01)
        for launcher in self.launchers:
            launcher.wait()

    def processes(self):
        return processes_with(f"ENDURING_JOB={self.number}")

    def node(self, name):
        """The pids of the processes of this node."""
        return processes_with(f"ENDURING_NODE={self.number}-{name}")

    def start(self, *options, pace=None):
        """Starts one more launcher. The name of its node is its number."""
        name = len(self.launchers)
        command = [self.program.paceline, "run", *options, *self.program.words(self.folder, pace)]
        with open(f"{self.folder}/log-{name}", "w") as log:
            launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                        env={**self.variables, "ENDURING_NODE": f"{self.number}-{name}"})
        self.launchers.append(launcher)
        return launcher

    def said(self):
        text = ""
        for number in range(len(self.launchers)):
            with open(f"{self.folder}/log-{number}", errors="replace") as log:
                text += f"--- launcher {number}\n" + log.read()
        return text

    def steps(self):
        """The steps of the rank that has made the most since it was started."""
        readings = [gauge(self.flights, rank) for rank in range(8)]
        return max([reading[1] for reading in readings if reading], default=0)

    def freeze(self):
        """Stops every process of the job. New processes are stopped until there are none left."""
        self.frozen = []
        while new := [pid for pid in self.processes() if pid not in self.frozen]:
            send(new, signal.SIGSTOP)
            self.frozen += new

    def thaw(self, late, choice):
        """Continues the processes, and some of them `late` seconds later than the others."""
        waits = {pid: bool(late) and choice.random() < 0.5 for pid in self.frozen}
        send([pid for pid in self.frozen if not waits[pid]], signal.SIGCONT)
        time.sleep(late)
        send([pid for pid in self.frozen if waits[pid]], signal.SIGCONT)

    def wait(self, seconds=LONGEST):
        """The launchers' exit codes; None for a launcher that still runs after `seconds`."""
        end, codes = time.monotonic() + seconds, []
        for launcher in self.launchers:
            try:
                codes.append(launcher.wait(max(0.0, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def result(self):
        try:
            with open(f"{self.folder}/result") as file:
                return file.read().strip()
        except FileNotFoundError:
            return None


def await_steps(job, steps, what):
    """Waits until the job has made `steps` steps or has ended. Ends the program if that takes too long."""
    end = time.monotonic() + LONGEST
    while job.steps() < steps:
        if job.launchers and all(launcher.poll() is not None for launcher in job.launchers):
            return
        if time.monotonic() > end:
            sys.exit(f"{what}: step {steps} did not come within {LONGEST} s:\n{job.said()}")
        time.sleep(0.01)


def secret_in(folder):
    path = f"{folder}/secret"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


def shell_for_hosts(folder):
    """Writes a script that stands in for ssh, and returns its path. Every host is this machine; its name becomes the node's name."""
    path = f"{folder}/ssh"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o700), "w") as file:
        file.write('#!/bin/sh\nexport ENDURING_NODE=$ENDURING_JOB-$1\nexec sh -c "$2"\n')
    return path
