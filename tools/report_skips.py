#!/usr/bin/env python3
"""tools/report_skips.py JUNIT_FILE: says which tests CTest skipped, each with its reason, and counts them in the last line.

A reason is planned when a line of tests/planned_skips matches it. Exit code 1 when one is not.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

PLANNED = pathlib.Path(__file__).parent.parent / "tests" / "planned_skips"


def planned_reasons():
    lines = [line.strip() for line in PLANNED.read_text().splitlines()]
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def reason_of(case):
    """What the test said: GoogleTest's words follow its line "FILE:LINE: Skipped", a script's follow "skipped: "."""
    output = case.findtext("system-out", "")
    said = re.search(r"^\S+:\d+: Skipped\n(.+)$|^skipped: (.+)$", output, re.MULTILINE)
    return (said[1] or said[2]) if said else case.find("skipped").get("message", "no reason")


def main(junit_file):
    cases = ElementTree.parse(junit_file).getroot().findall("testcase")
    planned = planned_reasons()
    skipped = {}
    for case in cases:
        if case.find("skipped") is not None:
            skipped.setdefault(reason_of(case), []).append(case.get("name"))
    unplanned = 0
    for reason, names in sorted(skipped.items()):
        is_planned = any(pattern.search(reason) for pattern in planned)
        unplanned += 0 if is_planned else len(names)
        print(f"\n{'skipped' if is_planned else 'SKIPPED, NOT PLANNED'}: {reason}")
        for name in names:
            print(f"  {name}")
    if unplanned:
        verb = "was" if unplanned == 1 else "were"
        print(f"\n{unplanned} of {len(cases)} tests {verb} skipped for a reason that tests/planned_skips does not have.")
        return 1
    count = sum(len(names) for names in skipped.values())
    verb = "was" if count == 1 else "were"
    print(f"\n{count} of {len(cases)} tests {verb} skipped{', all for planned reasons' if count else ''}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
