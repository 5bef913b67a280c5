#!/usr/bin/python3
"""press_ctrl_c.py FILE LINES COMMAND...: runs a command on its own terminal, presses Ctrl-C as soon as FILE has LINES lines, and prints what the
terminal shows. Exits with the exit code of the command, or 128 + the signal that ended it."""
import os
import pty
import select
import sys
import time

path, wanted, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)


def lines():
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


deadline = time.monotonic() + 150
pressed = False
while time.monotonic() < deadline:
    if select.select([terminal], [], [], 0.01)[0]:
        try:
            shown = os.read(terminal, 65536)
        except OSError:  # EIO: no process has the terminal open any more
            break
        sys.stdout.buffer.write(shown.replace(b"\r", b"\n"))
    if not pressed and lines() >= wanted:
        pressed = True
        os.write(terminal, b"\x03")
else:
    print("press_ctrl_c.py: the command has not ended")
    os.kill(pid, 9)
sys.stdout.flush()
status = os.waitpid(pid, 0)[1]
sys.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
