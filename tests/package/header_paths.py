#!/usr/bin/env python3
"""header_paths.py PREFIX: every page, header and source that the comments of an installed header name is in the installed tree, and so is every
header to which an installed page links."""
import pathlib
import re
import sys

PREFIX = pathlib.Path(sys.argv[1])
NAMED = re.compile(r"(?<![\w/<\"])((?:[\w-]+/)*[\w-]+\.(?:md|h|cpp|py))\b")

headers = sorted((PREFIX / "include").rglob("*.h"))
installed = [f"/{path.relative_to(PREFIX)}" for folder in ("include", "share/doc/paceline") for path in (PREFIX / folder).rglob("*")]
found, named = [], 0
for header in headers:
    for number, line in enumerate(header.read_text().splitlines(), 1):
        if line.startswith("#include"):
            continue
        for name in NAMED.findall(line):
            named += 1
            if not any(path.endswith(f"/{name}") for path in installed):
                found.append(f"{header.relative_to(PREFIX)}:{number}: {name} is not installed")
pages = PREFIX / "share/doc/paceline/docs"
links = [(page, link) for page in pages.glob("*.md") for link in re.findall(r"\]\(([^)#]+\.h)\)", page.read_text())]
found += [f"{page.name}: the link to {link} leads nowhere" for page, link in links if not (pages / link).exists()]
if named < 20:
    found.append(f"only {named} paths were found in {len(headers)} headers")
print("\n".join(found) if found else f"header_paths: {named} paths in {len(headers)} headers and {len(links)} links of pages exist")
sys.exit(1 if found else 0)
