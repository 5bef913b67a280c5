#!/usr/bin/env python3
"""Checks every include under paceline/ against paceline/LAYERS.

A module may include its own headers and those of the modules that its line in LAYERS names; <torch/...>, <ATen/...> and
<c10/...> only below the LibTorch line. Exit status 1 and one line a violation, as file:line: message.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "paceline"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = ("torch/", "ATen/", "c10/")


def read_layers():
    allowed, with_torch, torch_line = {}, set(), False
    for line in (ROOT / "LAYERS").read_text().splitlines():
        if line.startswith("# --- LibTorch"):
            torch_line = True
        match = re.match(r"^([a-z_]+)\s*:\s*(.*)$", line)
        if not match:
            continue
        name, layers = match.group(1), match.group(2).split()
        for layer in layers:
            if layer not in allowed:
                sys.exit(f"paceline/LAYERS: {name} names {layer}, which no line above it defines")
        allowed[name] = set(layers) | {name}
        if torch_line:
            with_torch.add(name)
    return allowed, with_torch


def violations(allowed, with_torch):
    for path in sorted(ROOT.rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        parts = path.relative_to(ROOT).parts
        if len(parts) == 1:
            continue  # the umbrella headers
        module = parts[0]
        if module not in allowed:
            yield f"{path}:1: {module} has no line in paceline/LAYERS"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            kind, target = match.groups()
            if kind == "<" and target.startswith(TORCH) and module not in with_torch:
                yield f"{path}:{number}: {module} is in the engine and must not include LibTorch"
            if kind == '"' and not target.startswith("paceline/"):
                yield f'{path}:{number}: includes are rooted: "paceline/..."'
            elif kind == '"':
                other = target.split("/")[1]
                if other not in allowed[module]:
                    yield f"{path}:{number}: {module} must not include {other} (paceline/LAYERS)"


def main():
    found = list(violations(*read_layers()))
    print("\n".join(found) if found else "check_layers: every include follows paceline/LAYERS")
    sys.exit(1 if found else 0)


main()
