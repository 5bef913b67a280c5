"""Hosts on this machine for the benchmark scripts: network namespaces that a bridge connects. Needs root."""
import os
import signal
import subprocess
import sys


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Hosts:
    """`count` hosts, connected by a bridge in its own namespace, with links of `gbit` Gbit/s in both directions (0: as fast as the machine
    is). Use as a context; at its end everything in the hosts is killed."""

    def __init__(self, gbit=0, count=2):
        self.hosts = [f"paceline{os.getpid()}-{number}" for number in range(count)]
        self.bridge = f"paceline{os.getpid()}-b"
        self.gbit = gbit

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))  # so that __exit__ runs
        for name in (self.bridge, *self.hosts):
            run("ip", "netns", "add", name)
        run("ip", "-n", self.bridge, "link", "add", "bridge0", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.hosts):
            run("ip", "-n", self.bridge, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", self.bridge, "link", "set", f"port{number}", "master", "bridge0", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            if self.gbit:
                self.limit(self.bridge, f"port{number}")
                self.limit(name, "eth0")
        return self

    def __exit__(self, *_):
        for number in range(len(self.hosts)):
            self.kill(self.processes(number))
        for name in (*self.hosts, self.bridge):
            run("ip", "netns", "delete", name)

    def limit(self, space, device):
        """The burst is that of one millisecond, as in hosts_bench."""
        burst = max(128 << 10, int(self.gbit * 1e9 / 8 * 0.001))
        run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{int(self.gbit * 1000)}mbit",
            "burst", str(burst), "latency", "50ms")

    @staticmethod
    def address(number):
        return f"10.78.0.{number + 1}"

    def enter(self, number):
        """The prefix of a command that runs on the host. The host's name is its address, because other ranks of torchrun connect to that
        name."""
        return ["ip", "netns", "exec", self.hosts[number], "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"',
                self.address(number)]

    def processes(self, number):
        return [int(pid) for pid in run("ip", "netns", "pids", self.hosts[number]).split()]

    @staticmethod
    def kill(pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def cut(self, number):
        """From now on everything that the host sends or receives is dropped, without a sign to either end."""
        run("ip", "-n", self.bridge, "link", "set", f"port{number}", "nomaster")
