#!/usr/bin/env python3
"""tools/report_skips.py [--may-repeat] JUNIT_FILE... [--again JUNIT_FILE]: lists the tests that failed, and those that CTest skipped, each with
its reason. The last line counts the skipped tests. The files are runs of one suite; a file that does not exist counts as a run without
tests. --again names a second run of the failed tests; those that passed in it are listed as flaky, not as failed.

A reason is planned if a line of tests/planned_skips matches it. Exits with 1 if a reason is not planned, a test failed or no test ran.

--may-repeat: prints nothing; exits with 0 if the failed tests may run a second time: at most MOST_REPEATED tests, none of which has a
sanitizer's report, crashed or hung. A program of GoogleTest that crashed or hung has not printed GoogleTest's last line; a program that runs
its suites in several processes prints a first and a last line for each.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

MOST_REPEATED = 3
SANITIZER = re.compile(r"Sanitizer|runtime error: ")
GTEST_BEGIN = re.compile(r"^\[=+\] Running ", re.MULTILINE)
GTEST_END = re.compile(r"^\[=+\] .* ran\.", re.MULTILINE)
PLANNED = pathlib.Path(__file__).parent.parent / "tests" / "planned_skips"


def planned_reasons():
    lines = [line.strip() for line in PLANNED.read_text().splitlines()]
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def reason_of(case):
    """Returns the test's reason. With GoogleTest it follows the line "FILE:LINE: Skipped", in a script's output "skipped: "."""
    output = case.findtext("system-out", "")
    said = re.search(r"^\S+:\d+: Skipped\n(.+)$|^skipped: (.+)$", output, re.MULTILINE)
    return (said[1] or said[2]) if said else case.find("skipped").get("message", "no reason")


def cases_of(files):
    existing = [file for file in files if pathlib.Path(file).exists()]
    return [case for file in existing for case in ElementTree.parse(file).getroot().findall("testcase")]


def has_failed(case):
    return case.find("failure") is not None


def may_repeat(files):
    outputs = [case.findtext("system-out", "") for case in cases_of(files) if has_failed(case)]
    crashed = any(len(GTEST_BEGIN.findall(output)) > len(GTEST_END.findall(output)) for output in outputs)
    return 0 < len(outputs) <= MOST_REPEATED and not crashed and not any(SANITIZER.search(output) for output in outputs)


def main(arguments):
    if arguments[0] == "--may-repeat":
        return 0 if may_repeat(arguments[1:]) else 1
    again = []
    if "--again" in arguments:
        place = arguments.index("--again")
        arguments, again = arguments[:place], arguments[place + 1:]
    cases = cases_of(arguments)
    if not cases:
        print("\nNo test was run.")
        return 1
    flaky = {case.get("name") for case in cases_of(again) if not has_failed(case)}
    failed = [case.get("name") for case in cases if has_failed(case) and case.get("name") not in flaky]
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
    if flaky:
        print(f"\nFLAKY: {len(flaky)} of {len(cases)} tests failed beside others and passed alone; their first output is above:")
        for name in sorted(flaky):
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
