#!/usr/bin/env bash
# readme_diff_test.sh ROOT PAGE README...: the first ```diff block of PAGE is exactly the difference between the plain and the distributed
# example; that difference has at most 15 lines; and the first ```cpp block of each README is the distributed example from its first include
# on.
set -euo pipefail
cd "$1"
page=$2
shift 2
plain=examples/02_plain_training.cpp
distributed=examples/03_distributed_training.cpp
most=15

# first_block LANGUAGE PAGE
first_block() {
  awk -v fence='```'"$1" '$0 == fence && !inside {inside = 1; next} inside && /^```$/ {exit} inside' "$2"
}

# compare PAGE HAS SHOULD_HAVE
compare() {
  [ "$2" != "$3" ] || return 0
  echo "readme_diff: $1 does not show the examples as they are; < the page has, > it should have" >&2
  diff <(echo "$2") <(echo "$3") >&2 || true
  exit 1
}

status=0
difference=$(diff -U0 --label "$plain" --label "$distributed" "$plain" "$distributed") || status=$?
[ "$status" -eq 1 ] || { echo "readme_diff: diff of $plain and $distributed ended with $status, not 1 (they differ)" >&2; exit 1; }
changed=$(echo "$difference" | sed 1,2d | grep -c '^[-+]')
if [ "$changed" -gt "$most" ]; then
  echo "readme_diff: $distributed changes $changed lines of $plain, at most $most are promised" >&2
  exit 1
fi
compare "$page" "$(first_block diff "$page")" "$difference"
program=$(sed -n '/^#include/,$p' "$distributed")
for readme in "$@"; do
  compare "$readme" "$(first_block cpp "$readme")" "$program"
done
echo "readme_diff: $changed changed lines in $page, the whole program in $*"
