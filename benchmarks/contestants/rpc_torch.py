#!/usr/bin/python3
"""One end of torch RPC over TensorPipe: `paceline bench rpc` starts both ends, with the system's Python or with --python's.

A message is a tensor of bytes, which torch RPC sends fastest. It talks to the command as apps/bench/messages.h
describes."""
import json
import os
import socket
import struct
import sys
import threading
import time
from collections import deque

THREADS = 2  # of the callee's handlers
HEAD = struct.Struct("<IIII")  # CallHead of apps/bench/contestant/call_contestant.h
BLOCKING, PIPELINED, ONE_WAY = range(3)


class Conversation:
    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect("\0" + name)

    def send(self, **message):
        text = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<I", len(text)) + text)

    def read(self, length):
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                os._exit(0)  # the command has ended it; rpc.shutdown() would wait for the other end
            data += part
        return data

    def receive(self):
        return json.loads(self.read(struct.unpack("<I", self.read(4))[0]))


def take(request, reply_bytes, slow_ms):
    if slow_ms > 0:
        time.sleep(slow_ms / 1000)
    return request[:reply_bytes]


class Load:
    def __init__(self, turn):
        self.turn = turn
        self.request = torch.ones(turn["bytes"], dtype=torch.uint8)
        self.end = time.monotonic() + turn["seconds"]

    def goes_on(self):
        return time.monotonic() < self.end

    def is_slow(self, caller, call):
        every = self.turn["slow_every"]
        return every > 0 and (call + caller * every // self.turn["width"]) % every == 0

    def arguments(self, slow=False):
        return (self.request, self.turn["reply_bytes"], self.turn["slow_ms"] if slow else 0)

    def check(self, reply):
        if reply.numel() != self.turn["reply_bytes"]:
            raise RuntimeError(f"a reply has {reply.numel()} bytes, not {self.turn['reply_bytes']}")


def call_in_turn(load, caller, counts, seconds):
    while load.goes_on():
        slow = load.is_slow(caller, counts[caller])
        begin = time.perf_counter()
        load.check(rpc.rpc_sync("callee", take, load.arguments(slow)))
        if not slow:
            seconds.append(time.perf_counter() - begin)
        counts[caller] += 1


def call_all(load):
    width, seconds = load.turn["width"], []
    counts = [0] * width
    if width == 1:
        call_in_turn(load, 0, counts, seconds)
        return sum(counts), seconds
    callers = [threading.Thread(target=call_in_turn, args=(load, i, counts, seconds)) for i in range(width)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return sum(counts), seconds


def pipeline(load):
    done, under_way = 0, deque()
    while load.goes_on() or under_way:
        while load.goes_on() and len(under_way) < load.turn["width"]:
            under_way.append(rpc.rpc_async("callee", take, load.arguments()))
        if under_way:
            load.check(under_way.popleft().wait())
            done += 1
    return done


def percentile(seconds, percent):
    return sorted(seconds)[max(0, -(-len(seconds) * percent // 100) - 1)] * 1e6


# The callee's figures, and default values for those of the caller.
NO_RESULT = {"lacks": "", "p50_us": 0, "p99_us": 0, "per_second": 0, "idle_seconds": 0, "idle_cpu_seconds": 0}


def measure(turn):
    if turn["form"] == ONE_WAY:
        return {**NO_RESULT, "lacks": "has no one-way calls"}
    load, begin = Load(turn), time.monotonic()
    if turn["form"] == PIPELINED:
        calls = pipeline(load)
    else:
        calls, seconds = call_all(load)
    result = {**NO_RESULT, "per_second": calls / (time.monotonic() - begin)}
    if turn["form"] == BLOCKING:
        result.update(p50_us=percentile(seconds, 50), p99_us=percentile(seconds, 99))
    return result


def connect(rank, way):
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    options = {"_transports": ["uv"], "_channels": ["basic"]} if way == "tcp" else {}
    rpc.init_rpc("callee" if rank else "caller", rank=rank, world_size=2,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                     num_worker_threads=THREADS, init_method=f"tcp://{host}:{port}", **options))


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    conversation = Conversation(sys.argv[1])
    conversation.send(kind="hello", rank=rank, world_size=2)
    way = conversation.receive()["option"]
    os.environ["USE_LIBUV"] = "0"  # Debian 13's PyTorch is built without it
    try:
        import torch
        import torch.distributed.rpc as rpc
    except ImportError as error:
        conversation.send(kind="failure", text=f"{error} ({sys.executable}); apt-get install python3-torch, or "
                          "--python PYTHON of an environment that has it")
        sys.exit(1)
    torch.set_num_threads(1)
    try:
        connect(rank, way)
        conversation.send(kind="ready", version=f"torch RPC {torch.__version__}, "
                          f"over {'TCP' if way == 'tcp' else 'shared memory'}", has_symmetric_memory=False, gives_results=True)
        while True:
            turn = conversation.receive()
            conversation.send(kind="result", **(measure(turn) if rank == 0 else NO_RESULT))
    except Exception as error:
        conversation.send(kind="failure", text=str(error))
        raise
