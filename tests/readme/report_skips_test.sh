#!/usr/bin/env bash
# report_skips_test.sh ROOT: scripts/test ends with a line that counts the skipped tests of both its runs, and an unplanned reason for a
# skip is a failure.
set -euo pipefail
report=$1/tools/report_skips.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# results NAME OUTPUT ...: writes a file as CTest does, with one test that ran and one skipped test for each NAME with its OUTPUT.
results() {
  echo '<testsuite><testcase name="core.Ran" status="run"><system-out>passed</system-out></testcase>'
  while [ $# -gt 0 ]; do
    echo "<testcase name=\"$1\" status=\"notrun\"><skipped message=\"SKIP\"/><system-out>$2</system-out></testcase>"
    shift 2
  done
  echo '</testsuite>'
}

# expect EXIT_CODE LINES: checks the report of $folder/results.xml and $folder/timing.xml.
expect() {
  local code=0 said
  said=$(python3 "$report" "$folder/results.xml" "$folder/timing.xml" 2>&1) || code=$?
  if [ "$code" != "$1" ] || [ "$said" != "$2" ]; then
    printf 'report_skips: exit code %s and\n%s\ninstead of %s and\n%s\n' "$code" "$said" "$1" "$2" >&2
    exit 1
  fi
}

skipped='[ RUN      ] a test
tests/a_test.cpp:7: Skipped
becoming another user needs root
[  SKIPPED ] a test (0 ms)'

results >"$folder/results.xml"
expect 0 $'\n0 of 1 tests were skipped.'
results launch.A "$skipped" cluster.slurm "skipped: slurmd is not installed" launch.B "$skipped" >"$folder/results.xml"
expect 0 $'
skipped: becoming another user needs root
  launch.A
  launch.B

skipped: slurmd is not installed
  cluster.slurm

3 of 4 tests were skipped, all for planned reasons.'
results launch.A "skipped: nobody planned this" launch.B "$skipped" >"$folder/results.xml"
expect 1 $'
skipped: becoming another user needs root
  launch.B

SKIPPED, NOT PLANNED: nobody planned this
  launch.A

1 of 3 tests was skipped for a reason that tests/planned_skips does not have.'
results e.gone "Unable to find executable" >"$folder/results.xml"
expect 1 $'
SKIPPED, NOT PLANNED: SKIP
  e.gone

1 of 2 tests was skipped for a reason that tests/planned_skips does not have.'

results launch.A "$skipped" >"$folder/results.xml"
results launch.B "$skipped" >"$folder/timing.xml"
expect 0 $'
skipped: becoming another user needs root
  launch.A
  launch.B

2 of 4 tests were skipped, all for planned reasons.'
echo '<testsuite><testcase name="core.Bad" status="fail"><failure message=""/></testcase></testsuite>' >"$folder/results.xml"
expect 1 $'
skipped: becoming another user needs root
  launch.B

1 of 3 tests failed:
  core.Bad

1 of 3 tests was skipped, all for planned reasons.'
echo '<testsuite><testcase name="core.Bad" status="run"/></testsuite>' >"$folder/again.xml"
said=$(python3 "$report" "$folder/results.xml" --again "$folder/again.xml")
[ "$said" = $'\nFLAKY: 1 of 1 tests failed beside others and passed alone; their first output is above:\n  core.Bad\n\n0 of 1 tests were skipped.' ] ||
  { echo "report_skips: of a flaky test it says: $said" >&2; exit 1; }
if python3 "$report" "$folder/results.xml" --again "$folder/results.xml" >/dev/null; then
  echo "report_skips: a test that failed twice is no failure" >&2
  exit 1
fi

# may_repeat NUMBER OUTPUT: whether a run with this number of failed tests, all with this output, may be repeated.
may_repeat() {
  { echo '<testsuite>'
    for i in $(seq "$1"); do echo "<testcase name=\"core.Bad$i\"><failure message=\"\"/><system-out>$2</system-out></testcase>"; done
    echo '</testsuite>'; } >"$folder/failed.xml"
  python3 "$report" --may-repeat "$folder/failed.xml"
}
begun='[==========] Running 1 test from 1 test suite.'
ended="$begun
[==========] 1 test from 1 test suite ran. (9 ms total)"
may_repeat 2 "$ended" || { echo "report_skips: a test that ended has no second run" >&2; exit 1; }
may_repeat 3 "Value of: soon" || { echo "report_skips: three failed tests have no second run" >&2; exit 1; }
for refused in "0 -" "4 -" "1 ==1==ERROR: AddressSanitizer: heap-use-after-free" "1 a.cpp:1: runtime error: shift" "1 WARNING: ThreadSanitizer: data race" "1 $begun" \
  "1 $begun
$ended"; do
  ! may_repeat "${refused%% *}" "${refused#* }" || { echo "report_skips: '$refused' would be repeated" >&2; exit 1; }
done
rm "$folder/results.xml"
echo '<testsuite/>' >"$folder/timing.xml"
expect 1 $'\nNo test was run.'
echo "report_skips: planned skips are counted, others fail"
