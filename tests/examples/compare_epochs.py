#!/usr/bin/env python3
"""compare_epochs.py METRICS SCREEN BOARD: checks that the metrics file, the printed lines and TensorBoard's events have the same epochs with the same
accuracies. TensorBoard has the last step of an epoch instead of its number. Prints "alike: 1 2 ", or the differences.
"""

import json
import pathlib
import re
import struct
import sys


def fields(message):
    """(number, value) of a protobuf message; the value of a group of bytes is bytes."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[at:at + size]
        at += size


def scalars(folder, wanted):
    """{step: value} of the scalar `wanted`."""
    found = {}
    for path in pathlib.Path(folder).glob("events.out.tfevents*"):
        data = path.read_bytes()
        while data:
            size = struct.unpack("<Q", data[:8])[0]
            event = dict(fields(data[12:12 + size]))
            data = data[16 + size:]
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                if value[1].decode() == wanted:
                    found[event.get(2, 0)] = struct.unpack("<f", value[2])[0]
    return found


def main():
    events = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    metrics, step = [], 0
    for event in events:
        step = event.get("step", step)
        if event["event"] == "epoch":
            metrics.append((event["epoch"], step, f"{100 * event['accuracy']:.2f}"))
    screen = re.findall(r"^(?:\[[^\]]*\] )?epoch (\d+): test accuracy ([0-9.]+)%", pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"), re.M)
    board = scalars(sys.argv[3], "test/accuracy")
    wanted = [(str(epoch), accuracy) for epoch, _, accuracy in metrics]
    at_steps = {step: accuracy for _, step, accuracy in metrics}
    if screen == wanted and {step: f"{100 * value:.2f}" for step, value in board.items()} == at_steps:
        print("alike:", *(epoch for epoch, _ in screen), "")
    else:
        print("metrics", metrics, "screen", screen, "TensorBoard", board)


main()
