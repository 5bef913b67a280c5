#!/usr/bin/env python3
"""excerpts_test.py ROOT: each block of C++ in docs/recipes.md is an excerpt of the program to which the text before it links."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
page = (ROOT / "docs/recipes.md").read_text()
found, excerpts, program = [], 0, None
for link, code in re.findall(r"\]\(\.\./(examples/[\w/]+\.cpp)\)|^```cpp\n(.*?)^```", page, re.M | re.S):
    if link:
        program = link
        continue
    excerpts += 1
    if program is None or code not in (ROOT / program).read_text():
        found.append(f"recipes.md shows code that is not in {program}:\n{code}")
programs = {path.name for path in (ROOT / "examples/recipes").glob("*.*")}
found += [f"recipes.md does not name {name}" for name in sorted(programs) if f"examples/recipes/{name})" not in page]
print("\n".join(found) if found else f"excerpts: {excerpts} excerpts are as in the programs, {len(programs)} programs")
sys.exit(1 if found or not excerpts else 0)
