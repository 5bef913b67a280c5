"""Starts jobs of enduring_program by `paceline run`, and freezes, continues and kills their processes. For the tests in this folder."""
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time

LONGEST = 120  # the longest wait, in seconds
# At SIGTERM, sys.exit() makes Job.__exit__ run, which kills the launchers although they have sessions of their own.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def processes_with(variable):
    """Returns the pids of all processes, of any session, whose environment contains `variable` ("NAME=value")."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if f"{variable}\0".encode() in file.read():
                    found.append(int(name))
        except OSError:
            pass  # the process has ended
    return found


def send(pids, number):
    """Sends a signal to the processes that still exist."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def gauge(flights, rank):
    """Returns (pid, steps) from the step gauge of a rank (telemetry/FORMAT.md), or None if the rank has not written it yet."""
    try:
        with open(f"{flights}/rank-{rank:03}.steps", "rb") as file:
            content = file.read(64)
    except FileNotFoundError:
        return None
    return struct.unpack_from("<QQ", content, 8) if len(content) == 64 and content[:8] == b"PLSTEPS1" else None


def free_port():
    """Returns a port of 127.0.0.1 that no socket uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Program:
    """The program of a job. `paceline`: the path of the command. `rank`: the path of the program that each rank runs. `steps`: the number
    of its steps. `pace`: the milliseconds of a step."""

    def __init__(self, paceline, rank, steps, pace):
        self.paceline, self.rank, self.steps, self.pace = paceline, rank, steps, pace

    def words(self, folder, pace=None):
        """Returns the command line of a rank, with another pace if one is given."""
        return [self.rank, str(self.steps), str(self.pace if pace is None else pace), folder]


class Job:
    """The launchers of one job, which works in `folder`. Use a Job in a `with` statement, which kills all processes of the job."""

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
        """Returns the pids of all processes of the job."""
        return processes_with(f"ENDURING_JOB={self.number}")

    def node(self, name):
        """Returns the pids of the processes of the node `name`."""
        return processes_with(f"ENDURING_NODE={self.number}-{name}")

    def start(self, *options, pace=None):
        """Starts one more launcher and returns its process. The number of the launcher is also the name of its node."""
        name = len(self.launchers)
        command = [self.program.paceline, "run", *options, *self.program.words(self.folder, pace)]
        with open(f"{self.folder}/log-{name}", "w") as log:
            launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                        env={**self.variables, "ENDURING_NODE": f"{self.number}-{name}"})
        self.launchers.append(launcher)
        return launcher

    def said(self):
        """Returns the output of all launchers."""
        text = ""
        for number in range(len(self.launchers)):
            with open(f"{self.folder}/log-{number}", errors="replace") as log:
                text += f"--- launcher {number}\n" + log.read()
        return text

    def steps(self):
        """Returns the highest number of steps that a rank of the job has made since the rank was started."""
        readings = [gauge(self.flights, rank) for rank in range(8)]
        return max([reading[1] for reading in readings if reading], default=0)

    def freeze(self):
        """Stops every process of the job, including processes that are started meanwhile."""
        self.frozen = []
        while new := [pid for pid in self.processes() if pid not in self.frozen]:
            send(new, signal.SIGSTOP)
            self.frozen += new

    def thaw(self, late, choice):
        """Continues the processes that freeze() has stopped. If `late` is not 0, about half of them, which `choice` (random.Random)
        selects, continue `late` seconds after the others."""
        waits = {pid: bool(late) and choice.random() < 0.5 for pid in self.frozen}
        send([pid for pid in self.frozen if not waits[pid]], signal.SIGCONT)
        time.sleep(late)
        send([pid for pid in self.frozen if waits[pid]], signal.SIGCONT)

    def wait(self, seconds=LONGEST):
        """Waits until all launchers have ended, at most `seconds`. Returns their exit codes, with None for a launcher that still runs."""
        end, codes = time.monotonic() + seconds, []
        for launcher in self.launchers:
            try:
                codes.append(launcher.wait(max(0.0, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def result(self):
        """Returns the text that the job has written as its result, or None."""
        try:
            with open(f"{self.folder}/result") as file:
                return file.read().strip()
        except FileNotFoundError:
            return None


def await_steps(job, steps, what):
    """Waits until the job has made `steps` steps or all its launchers have ended. After LONGEST seconds, exits with a message that begins
    with `what`."""
    end = time.monotonic() + LONGEST
    while job.steps() < steps:
        if job.launchers and all(launcher.poll() is not None for launcher in job.launchers):
            return
        if time.monotonic() > end:
            sys.exit(f"{what}: the job did not reach step {steps} within {LONGEST} s:\n{job.said()}")
        time.sleep(0.01)


def secret_in(folder):
    """Writes a file with a new secret, and returns its path."""
    path = f"{folder}/secret"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


def shell_for_hosts(folder):
    """Writes a script that replaces ssh, and returns its path. The script runs a host's command on this machine, and makes the name of the
    host the name of the node."""
    path = f"{folder}/ssh"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o700), "w") as file:
        file.write('#!/bin/sh\nexport ENDURING_NODE=$ENDURING_JOB-$1\nexec sh -c "$2"\n')
    return path
