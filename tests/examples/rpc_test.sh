#!/usr/bin/env bash
# rpc_test.sh LAUNCHER PROGRAM RANKS SMALLER|LARGER: checks that the program prints the same numbers with several workers as in one process, and that
# the last number is smaller or larger than the first.
set -euo pipefail
launcher=$1 program=$2 ranks=$3 change=$4

alone=$("$program")
workers=$("$launcher" run --nproc-per-node "$ranks" "$program")
[ "$(wc -l <<<"$alone")" -ge 4 ] || { echo "too few lines:"; echo "$alone"; exit 1; }
diff <(echo "$alone") <(grep -oE '(step|episode) [0-9]+: .*' <<<"$workers") || { echo "other numbers than in one process"; exit 1; }
awk -v change="$change" '{last = $NF} NR == 1 {first = $NF} END {exit !(change == "SMALLER" ? last < first : last > first)}' <<<"$alone" ||
  { echo "nothing was learned:"; echo "$alone"; exit 1; }
