#!/usr/bin/env python3
"""tools/report_skips.py JUNIT_FILE...: lists the tests that failed and those that CTest skipped, each with its reason. The last line counts
the skipped ones. Several files are several runs of one suite; a file that does not exist counts as a run without tests.

A reason is planned when a line of tests/planned_skips matches it. Exit code 1 when one is not, when a test failed or when no test ran.
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


def main(junit_files):
    existing = [file for file in junit_files if pathlib.Path(file).exists()]
    cases = [case for file in existing for case in ElementTree.parse(file).getroot().findall("testcase")]
    if not cases:
        print("\nNo test was run.")
        return 1
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
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
    if failed:
        print(f"\n{len(failed)} of {len(cases)} tests failed:")
        for name in failed:
            print(f"  {name}")
    if unplanned:
        verb = "was" if unplanned == 1 else "were"
        print(f"\n{unplanned} of {len(cases)} tests {verb} skipped for a reason that tests/planned_skips does not have.")
        return 1
    count = sum(len(names) for names in skipped.values())
    verb = "was" if count == 1 else "were"
    print(f"\n{count} of {len(cases)} tests {verb} skipped{', all for planned reasons' if count else ''}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
