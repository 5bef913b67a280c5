"""Exchanges short texts between the ranks of an engine's group."""

import ctypes

from paceline import _core

MOST_BYTES = 4096


def exchange_texts(group, text, timeout_ms=0):
    """Collective: the texts of all ranks, in their order. A text longer than MOST_BYTES in UTF-8 is cut. `timeout_ms`: 0
    selects the group's deadline. Raises paceline.Error."""
    mine = bytearray(MOST_BYTES)
    data = text.encode()[:MOST_BYTES]
    mine[: len(data)] = data
    whole = bytearray(MOST_BYTES * group.size)
    group.run(_core.OPS["all_gather"], _core.DTYPES["uint8"], _address(mine), MOST_BYTES, _address(whole), len(whole), timeout_ms=timeout_ms)
    parts = [bytes(whole[begin : begin + MOST_BYTES]) for begin in range(0, len(whole), MOST_BYTES)]
    return [part.rstrip(b"\0").decode(errors="replace") for part in parts]


def _address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
