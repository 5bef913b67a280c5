#!/usr/bin/env bash
# check_space_test.sh ROOT: a build folder that cannot grow to its size on its disk is an error that says how much is missing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if message=$("$1/scripts/check_space" "$folder/build" 1000000000 2>&1); then
  echo "a petabyte was said to fit" >&2
  exit 1
fi
grep -qE "^$folder/build needs [0-9]+ MB more to build, and its disk has [0-9]+ MB free; make room" <<<"$message" || { echo "$message" >&2; exit 1; }

dd if=/dev/zero of="$folder/build/objects" bs=1M count=8 status=none
"$1/scripts/check_space" "$folder/build" 4  # what is there already needs no more room
echo "check_space: says what is missing"
