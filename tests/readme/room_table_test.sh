#!/usr/bin/env bash
# room_table_test.sh ROOT: the table of rooms in docs/architecture.md lists the rooms of paceline/LAYERS, in order, with the rooms that each
# may include.
set -euo pipefail
cd "$1"

layers=$(awk '/^[a-z_]+ *:/ {wing = $1} /^  [a-z_]+ *:/ {line = $0; sub(/^  /, "", line); sub(/ *: */, ": ", line); print wing "/" line}' paceline/LAYERS |
  sed -E 's/ +$//')
table=$(sed -nE 's/^\| `([a-z_]+\/[a-z_]+)` \| ([a-z_ ]*)\|.*/\1: \2/p' docs/architecture.md | sed -E 's/ +$//')
if [ "$table" != "$layers" ]; then
  echo "room_table: docs/architecture.md (<) is not what paceline/LAYERS says (>)" >&2
  diff <(echo "$table") <(echo "$layers") >&2 || true
  exit 1
fi
echo "room_table: $(echo "$layers" | wc -l) rooms, as in paceline/LAYERS"
