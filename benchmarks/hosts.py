"""Hosts on this machine for the benchmark scripts: network namespaces that a bridge connects. Needs root."""
import collections
import ctypes
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Hosts:
    """`count` hosts, connected by a bridge in its own namespace, with links of `gbit` Gbit/s in both directions (0: as fast as the machine
    is). Frames to and from host 0 take `delay_ms` longer in each direction. Use as a context; at its end everything in the hosts is killed."""

    def __init__(self, gbit=0, count=2, delay_ms=0):
        self.hosts = [f"paceline{os.getpid()}-{number}" for number in range(count)]
        self.bridge = f"paceline{os.getpid()}-b"
        self.gbit = gbit
        self.delay_ms = delay_ms
        self.link = None
        self.spaces = []  # the namespaces that this object has made

    def __enter__(self):
        signal.signal(signal.SIGTERM, self.stop)
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    @staticmethod
    def stop(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # timeout(1) sends it twice; a second one would end the clean-up
        sys.exit("stopped by SIGTERM")

    def connect(self):
        for name in (self.bridge, *self.hosts):
            run("ip", "netns", "add", name)
            self.spaces.append(name)
        run("ip", "-n", self.bridge, "link", "add", "bridge0", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.hosts):
            if self.delay_ms and number == 0:
                self.link = DelayedLink((name, "eth0"), (self.bridge, f"port{number}"), self.delay_ms / 1e3)
            else:
                run("ip", "-n", self.bridge, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", self.bridge, "link", "set", f"port{number}", "master", "bridge0", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            if self.gbit:
                self.limit(self.bridge, f"port{number}")
                self.limit(name, "eth0")

    def __exit__(self, *_):
        for name in self.spaces:
            self.kill(self.processes_in(name))
        if self.link:
            self.link.close()
        for name in self.spaces:
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
        return self.processes_in(self.hosts[number])

    @staticmethod
    def processes_in(space):
        return [int(pid) for pid in run("ip", "netns", "pids", space).split()]

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


class DelayedLink:
    """A process that carries frames between two network devices, which it makes, and keeps each for some time, like netem where the kernel
    has none."""

    TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
    CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1

    def __init__(self, one, other, seconds):
        """`one` and `other`: a network namespace and the device's name in it."""
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            ctypes.CDLL(None).prctl(self.PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the script, however that ends
            try:
                devices = [self.device(*end) for end in (one, other)]
                os.write(tell, b"1")
                self.carry(devices, seconds)
            finally:
                os._exit(1)
        os.close(tell)
        told = os.read(ready, 1)
        os.close(ready)
        if not told:
            sys.exit("the devices of a delayed link could not be made: /dev/net/tun is needed")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    @classmethod
    def device(cls, space, name):
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/var/run/netns/{space}") as file:
            if libc.setns(file.fileno(), cls.CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns({space})")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, cls.TUNSETIFF, struct.pack("16sH", name.encode(), cls.TAP_WITHOUT_HEADER))
        return device

    @staticmethod
    def carry(devices, seconds):
        one, other = devices
        to = {one: other, other: one}
        queues = {device: collections.deque() for device in devices}
        poll = select.poll()
        for device in devices:
            poll.register(device, select.POLLIN)
        while True:
            due = min((queue[0][0] for queue in queues.values() if queue), default=None)
            wait = None if due is None else max(0, int((due - time.monotonic()) * 1e3))
            for device, _ in poll.poll(wait):
                try:
                    for _ in range(64):
                        queues[to[device]].append((time.monotonic() + seconds, os.read(device, 65536)))
                except BlockingIOError:
                    pass
            now = time.monotonic()
            for device, queue in queues.items():
                while queue and queue[0][0] <= now:
                    try:
                        os.write(device, queue.popleft()[1])
                    except OSError:
                        pass  # the device is not up: the frame is lost, as on any link
