#!/usr/bin/env python3
"""count_names.py ROOT SOURCE MOST: counts the names of docs/api.md that a program uses, and fails if there are more than MOST."""
import pathlib
import re
import sys

root, source, most = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
listed = set()
for line in (root / "docs/api.md").read_text().splitlines():
    if match := re.match(r"- `(?:class |struct |enum )?(\w+)", line):
        listed.add(match[1])
code = re.sub(r"//.*|\"[^\"\n]*\"|#include.*", "", source.read_text())
used = sorted(name for name in set(re.findall(r"(?<![.>\w])\w+", code)) if name in listed)
print(f"{len(used)} names of the {len(listed)} on docs/api.md: {', '.join(used)}")
if not 25 <= len(used) <= most:
    sys.exit(f"FAILED: {source.name} uses {len(used)} names, and should use at most {most}")
