#!/usr/bin/env python3
"""Checks every include under paceline/ against paceline/LAYERS.

A room may include its own headers and those of the rooms in its line of LAYERS, which must be in wings that its wing may use. Only rooms
below the LibTorch line may include <torch/...>, <ATen/...> and <c10/...>. Prints one line for each violation, as file:line: message, and
exits with 1 if there are any.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "paceline"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = ("torch/", "ATen/", "c10/")


def read_layers():
    """Returns the rooms that each room may include, the wing of each room, and the wings that may include LibTorch."""
    wings, allowed, wing_of, with_torch, torch_line, wing = {}, {}, {}, set(), False, None
    for line in (ROOT / "LAYERS").read_text().splitlines():
        torch_line |= line.startswith("# --- LibTorch")
        match = re.match(r"^(  )?([a-z_]+)\s*:\s*(.*)$", line)
        if not match:
            continue
        is_room, name, layers = match[1], match[2], match[3].split()
        known = allowed if is_room else wings
        for layer in layers:
            if layer not in known:
                sys.exit(f"paceline/LAYERS: {name} names {layer}, which no line above it defines")
            if is_room and wing_of[layer] not in wings[wing]:
                sys.exit(f"paceline/LAYERS: room {name} of {wing} names {layer}, a room of {wing_of[layer]}, which {wing} may not include")
        known[name] = set(layers) | {name}
        if is_room:
            wing_of[name] = wing
        else:
            wing = name
            if torch_line:
                with_torch.add(name)
    return allowed, wing_of, with_torch


def violations(allowed, wing_of, with_torch):
    for path in sorted(ROOT.rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        parts = path.relative_to(ROOT).parts
        if len(parts) == 1:
            continue  # the wings' public headers
        wing, room = parts[0], parts[1]
        if wing_of.get(room) != wing:
            yield f"{path}:1: {wing}/{room} has no line in paceline/LAYERS"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            kind, target = match.groups()
            if kind == "<" and target.startswith(TORCH) and wing not in with_torch:
                yield f"{path}:{number}: {wing} must not include LibTorch"
            if kind == '"' and not target.startswith("paceline/"):
                yield f'{path}:{number}: includes are rooted: "paceline/..."'
            elif kind == '"':
                other = target.split("/")[2]
                if other not in allowed[room]:
                    yield f"{path}:{number}: {room} must not include {other} (paceline/LAYERS)"


def main():
    found = list(violations(*read_layers()))
    print("\n".join(found) if found else "check_layers: every include follows paceline/LAYERS")
    sys.exit(1 if found else 0)


main()
