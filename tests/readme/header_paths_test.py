#!/usr/bin/env python3
"""header_paths_test.py ROOT: every page, header and source that the comments of a public header name is installed, and so is every header to which a
page links. A header is public if one of the wings' headers includes it, directly or through others (cmake/PacelineInstall.cmake)."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
NAMED = re.compile(r"(?<![\w/<\"])((?:[\w-]+/)*[\w-]+\.(?:md|h|cpp|py))\b")
INCLUDED = re.compile(r'^#include "(paceline/[^"]+)"', re.M)

headers = {}  # text by path
unread = ["paceline/paceline.h"]
while unread:
    path = unread.pop()
    if path not in headers:
        headers[path] = (ROOT / path).read_text()
        unread += INCLUDED.findall(headers[path])
pages = [path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*")]
installed = [f"/{path}" for path in headers] + [f"/{path.relative_to(ROOT)}" for path in pages]
found, named = [], 0
for path, text in sorted(headers.items()):
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#include"):
            continue
        for name in NAMED.findall(line):
            named += 1
            if not any(path.endswith(f"/{name}") for path in installed):
                found.append(f"{path}:{number}: {name} is not installed")
links = [(page, link) for page in (ROOT / "docs").glob("*.md") for link in re.findall(r"\]\(\.\./(paceline/[^)#]+\.h)", page.read_text())]
found += [f"{page.name}: {link}, to which the page links, is not installed" for page, link in links if link not in headers]
if named < 20:
    found.append(f"only {named} paths were found in {len(headers)} headers")
print("\n".join(found) if found else f"header_paths: {named} paths in {len(headers)} headers and {len(links)} links of pages exist")
sys.exit(1 if found else 0)
