#!/usr/bin/env bash
# data_parallel_test.sh PROGRAM: checks that every replica gets its part of a batch, and that the loss falls.
set -euo pipefail
program=$1

expect() {
  grep -q -F -- "$2" <<<"$1" || { echo "not in the output: $2"; echo "$1"; exit 1; }
}
two=$("$program")
expect "$two" "In Model: input size [15, 5] output size [15, 2]"
expect "$two" "In Model: input size [5, 5] output size [5, 2]"
expect "$two" "Outside: input size [30, 5] output size [30, 2]"
three=$("$program" 3)
expect "$three" "In Model: input size [10, 5] output size [10, 2]"
expect "$three" "In Model: input size [2, 5] output size [2, 2]"  # 10 samples are divided as 4, 4 and 2
alone=$("$program" 1)
expect "$alone" "In Model: input size [30, 5] output size [30, 2]"

loss() { awk -v epoch="epoch $2:" 'index($0, epoch) {print $NF}' <<<"$1"; }
awk -v first="$(loss "$two" 0)" -v last="$(loss "$two" 4)" 'BEGIN {exit !(last < first)}' || { echo "the loss did not fall"; exit 1; }
# Replicas may change only the rounding.
awk -v a="$(loss "$two" 4)" -v b="$(loss "$alone" 4)" 'BEGIN {exit !((a - b) ^ 2 < 1e-6)}' || { echo "another loss than alone"; exit 1; }
