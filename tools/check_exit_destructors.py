#!/usr/bin/env python3
"""Libraries whose objects destroy something when the process ends, or a thread: check_exit_destructors.py LIB.a...

A group may live in a global variable of the program's, and its threads run to the very end. What the library destroys at
exit is then gone before them: so it destroys nothing. A static that needs a destructor is made by new and kept.
Objects are allowed that only have what <iostream> has in each of them.
"""
import re
import subprocess
import sys

REGISTERS = ("__cxa_atexit", "__cxa_thread_atexit", "__cxa_thread_atexit_impl", "atexit")
OF_IOSTREAM = "std::ios_base::Init::~Init()"
# Their own ends need one: MPI is finalised after the groups of main(), which look whether it is.
ALLOWED = {"mpi_runtime"}


def objects(library):
    """The archive's objects with their undefined symbols."""
    text = subprocess.run(["nm", "-C", "-u", library], check=True, capture_output=True, text=True).stdout
    name, symbols = "", []
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            if name:
                yield name, symbols
            name, symbols = line[:-1], []
        elif match := re.match(r"\s+[Uw] (.*)", line):
            symbols.append(match[1].split("@")[0])
    if name:
        yield name, symbols


def main():
    found = 0
    for library in sys.argv[1:]:
        for name, symbols in objects(library):
            registers = [symbol for symbol in symbols if symbol in REGISTERS]
            if not registers or OF_IOSTREAM in symbols or any(word in name for word in ALLOWED):
                continue
            print(f"{library}: {name} uses {', '.join(registers)}: a static with a destructor")
            found += 1
    if not sys.argv[1:]:
        sys.exit("no library was named")
    sys.exit(1 if found else 0)


main()
