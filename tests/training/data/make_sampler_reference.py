#!/usr/bin/env python3
"""Writes sampler_reference.inc: the indices of Python's DistributedSampler, for sampler_test.cpp.

With --check it compares instead and exits with status 1 if the committed file differs. Needs PyTorch (Debian: python3-torch).
"""
import pathlib
import sys

from torch.utils.data.distributed import DistributedSampler

TARGET = pathlib.Path(__file__).with_name("sampler_reference.inc")
CASES = [(n, r) for n in (1, 2, 3, 7, 10, 64, 101) for r in (1, 2, 3, 4, 5, 8)]
LARGE = [(50000, 2), (60000, 8), (60000, 7)]
SEEDS = ((0, 0), (0, 3), (42, 1), (2**40 + 5, 11))


def digest(indices):
    """FNV-1a over the indices as 64-bit words."""
    value = 0xCBF29CE484222325
    for index in indices:
        value = ((value ^ index) * 0x100000001B3) % 2**64
    return value


def lines():
    for n, replicas in CASES + LARGE:
        for seed, epoch in SEEDS:
            for shuffle, drop_last in ((True, False), (True, True), (False, False), (False, True)):
                if not shuffle and (seed, epoch) != (0, 0):
                    continue
                for rank in sorted({0, replicas // 2, replicas - 1}):
                    sampler = DistributedSampler(range(n), replicas, rank, shuffle, seed, drop_last)
                    sampler.set_epoch(epoch)
                    indices = list(sampler)
                    first = ", ".join(map(str, indices[:4]))
                    yield (f"{{{n}, {replicas}, {rank}, {seed}u, {epoch}, {str(shuffle).lower()}, "
                           f"{str(drop_last).lower()}, {len(indices)}, {digest(indices):#x}u, {{{first}}}}},\n")


def main():
    text = "// Made by make_sampler_reference.py; do not edit.\n" + "".join(lines())
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit(f"{TARGET} is not what this machine's PyTorch gives; run {__file__} and look at the difference")


main()
