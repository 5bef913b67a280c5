#!/usr/bin/env python3
"""check_exit_destructors.py LIB.a...: finds objects of the libraries that destroy something when the process or a thread ends.

A group may be a global variable of the program, and its threads may run until the process ends. If the library destroyed statics at exit,
these threads could still use them. So it destroys nothing: a static that needs a destructor is made with new and never deleted.
The static that <iostream> defines in every object is allowed.
"""
import re
import subprocess
import sys

REGISTERS = ("__cxa_atexit", "__cxa_thread_atexit", "__cxa_thread_atexit_impl", "atexit")
OF_IOSTREAM = "std::ios_base::Init::~Init()"
# These objects need a destructor: MPI is finalised after the groups of main(), which check whether it is.
ALLOWED = {"mpi_library"}


def objects(library):
    """Returns the archive's objects with their undefined symbols."""
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
        sys.exit("usage: check_exit_destructors.py LIB.a...")
    sys.exit(1 if found else 0)


main()
