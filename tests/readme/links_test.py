#!/usr/bin/env python3
"""links_test.py ROOT: every relative link in the project's pages leads to a file or folder that exists, and to a heading of that page."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])


def text_of(page):
    """The page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)


def anchors(page):
    """The anchors that GitHub and the site make from the headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", text_of(page), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


pages = sorted({page for pattern in ("*.md", "docs/**/*.md", "paceline/**/*.md", "benchmarks/**/*.md") for page in ROOT.glob(pattern)})
missing = []
links = 0
for page in pages:
    # [text](target "title") and [text](target#heading); links with a scheme are not checked.
    for target in re.findall(r"\]\(([^)\s]+)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        links += 1
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            missing.append(f"links: {page.relative_to(ROOT)} links to {target}, which does not exist")
        elif anchor and anchor not in anchors(file):
            missing.append(f"links: {page.relative_to(ROOT)} links to {target}, but the page has no such heading")
if links < 100:
    missing.append(f"links: only {links} links were found")
print("\n".join(missing) if missing else f"links: {links} relative links lead somewhere")
sys.exit(1 if missing else 0)
