#!/usr/bin/env bash
# module_table_test.sh ROOT: the table of modules in docs/architecture.md names the modules of paceline/LAYERS, in order, with the
# modules that each may include.
set -euo pipefail
cd "$1"

layers=$(sed -nE 's/^([a-z_]+) *: *(.*[^ ])? *$/\1: \2/p' paceline/LAYERS)
table=$(sed -nE 's/^\| `([a-z_]+)` \| ([a-z_ ]*)\|.*/\1: \2/p' docs/architecture.md | sed -E 's/ +$//')
layers=$(echo "$layers" | sed -E 's/ +$//')
if [ "$table" != "$layers" ]; then
  echo "module_table: docs/architecture.md (<) is not what paceline/LAYERS says (>)" >&2
  diff <(echo "$table") <(echo "$layers") >&2 || true
  exit 1
fi
echo "module_table: $(echo "$layers" | wc -l) modules, as in paceline/LAYERS"
