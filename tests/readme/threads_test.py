#!/usr/bin/env python3
"""threads_test.py ROOT: docs/thread_model.md names exactly the threads that the library starts, the sources that install handlers of signals,
and those that detach threads. The launcher's processes are no part of it."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
WINGS = ("engine", "files", "planning", "training")
sources = {path.relative_to(ROOT).as_posix(): path.read_text() for wing in WINGS for path in (ROOT / "paceline" / wing).rglob("*.cpp")}
spawn = (ROOT / "paceline/launcher/spawn/spawn.cpp").read_text()
page = (ROOT / "docs/thread_model.md").read_text()
found = []


def compare(what, of_page, of_sources):
    for name in sorted(of_page - of_sources):
        found.append(f"{what}: the page names {name}, which no source has")
    for name in sorted(of_sources - of_page):
        found.append(f"{what}: the page does not name {name}")


def ending_like(paths):
    """Those of `paths` that the page names by their last folder and name."""
    return {path for path in paths if "/".join(path.split("/")[-2:]) in page}


names = set(re.findall(r'start_thread\(\s*"([^"]+)"', "\n".join(sources.values()) + spawn))
names |= set(re.findall(r'"(paceline-oneccl)"', "\n".join(sources.values())))
compare("threads", set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)), {"rank-N" if name == "rank-" else name for name in names})
handlers = {path for path, text in sources.items() if re.search(r"sigaction\([^,]+, &", text)}
compare("handlers", ending_like(handlers), handlers)
detached = {path for path, text in sources.items() if re.search(r"[Tt]hread(_|s_)?\)?\.detach\(\)", text)}
compare("detached threads", ending_like(detached), detached)
for kind, number in (("threads", len(names)), ("handlers", len(handlers)), ("detached threads", len(detached))):
    if number < 3:
        found.append(f"{kind}: only {number} were found in the sources, so this test looks for the wrong text")
print("\n".join(found) if found else f"threads: {len(names)} threads, {len(handlers)} handlers and {len(detached)} files that detach, as on the page")
sys.exit(1 if found else 0)
