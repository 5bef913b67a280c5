#!/usr/bin/env bash
# readme_diff_test.sh ROOT README...: the first ```diff block of each README is exactly the difference between the plain and the
# distributed example, and that difference is at most 15 lines.
set -euo pipefail
cd "$1"
shift
plain=examples/02_plain_training.cpp
distributed=examples/03_distributed_training.cpp
most=15

status=0
difference=$(diff -U0 --label "$plain" --label "$distributed" "$plain" "$distributed") || status=$?
[ "$status" -eq 1 ] || { echo "readme_diff: diff of $plain and $distributed ended with $status, not 1 (they differ)" >&2; exit 1; }
changed=$(echo "$difference" | sed 1,2d | grep -c '^[-+]')
if [ "$changed" -gt "$most" ]; then
  echo "readme_diff: $distributed changes $changed lines of $plain, at most $most are promised" >&2
  exit 1
fi
for readme in "$@"; do
  block=$(awk '/^```diff$/ {inside = 1; next} inside && /^```$/ {exit} inside' "$readme")
  if [ "$block" != "$difference" ]; then
    echo "readme_diff: the diff block of $readme is not the difference of the examples; < the README has, > it should have" >&2
    diff <(echo "$block") <(echo "$difference") >&2 || true
    exit 1
  fi
done
echo "readme_diff: $changed changed lines, the same in $*"
