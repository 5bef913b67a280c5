#!/usr/bin/env bash
# timing_tests_test.sh ROOT: every test in tests/timing/timing_tests.cmake exists; CTest ignores a name that no test has.
set -euo pipefail
cd "$1/tests"
names=$(sed -n 's/^set_tests_properties(\([^ ]*\) PROPERTIES LABELS timing)$/\1/p' timing/timing_tests.cmake)
[ "$(wc -w <<<"$names")" = "$(grep -c '^[^#]' timing/timing_tests.cmake)" ] || { echo "timing_tests.cmake has a line of another form" >&2; exit 1; }
for name in $names; do
  if ! grep -rqE --include=CMakeLists.txt --include='*.cpp' "NAME $name |, ${name##*.}\) \{" .; then
    echo "timing_tests.cmake names '$name', and no test has that name" >&2
    exit 1
  fi
done
echo "timing_tests: $(wc -w <<<"$names") tests may be repeated"
