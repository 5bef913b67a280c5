#!/usr/bin/env python3
"""Every message of tests/harness/messages/ is used by a test, every used name is in it, and no two are alike."""

import collections
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
TABLES = sorted((TESTS / "harness" / "messages").glob("*.h"))

entries = re.findall(r'^    \{"([a-z0-9_.]+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\}', "".join(table.read_text() for table in TABLES), re.MULTILINE)
names = [name for name, _ in entries]
used = collections.Counter()
for source in (*TESTS.rglob("*.cpp"), *TESTS.rglob("*.h")):
    if source not in TABLES:
        used.update(re.findall(r'Says\(\s*"([a-z0-9_.]+)"', source.read_text()))
used.pop("no.such.message", None)

problems = [f"{name} is in the table twice" for name, count in collections.Counter(names).items() if count > 1]
texts = collections.Counter(" ".join(text.split()) for _, text in entries)
problems += [f"{text} is in the table twice" for text, count in texts.items() if count > 1]
problems += [f"{name} is used by no test" for name in names if name not in used]
problems += [f"{name} is not in the table" for name in used if name not in names]
if not entries:
    problems.append("tests/harness/messages/ has no entries")
print("\n".join(problems) or f"{len(names)} messages, used {used.total()} times")
sys.exit(bool(problems))
