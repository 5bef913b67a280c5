"""The command `paceline`: replaces this process by the program in the wheel. Only `bench` is a program in Python (bench.py)."""

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).with_name("_bin") / "paceline"


def main():
    if sys.argv[1:2] == ["bench"]:
        from paceline import bench

        bench.main(sys.argv[2:])
        return
    # `paceline run train.py` starts the ranks by this interpreter, not by another one in PATH.
    os.environ.setdefault("PACELINE_PYTHON", sys.executable)
    try:
        os.execv(PROGRAM, ["paceline", *sys.argv[1:]])
    except OSError as error:
        print(
            f"paceline: cannot run {PROGRAM}: {error.strerror}; install the wheel again: pip install --force-reinstall paceline",
            file=sys.stderr,
        )
        raise SystemExit(126) from None
