#!/usr/bin/env bash
# libtorch_parts_test.sh PACELINE PROGRAM: checks that the model learns, and that every rank loads the same model.
set -euo pipefail
paceline=$1 program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for ranks in 1 2; do
  output=$("$paceline" run --nproc-per-node $ranks "$program" "$folder/net.$ranks.pt")
  [ "$(grep -c 'of 1000 correct' <<<"$output")" = $ranks ] || { echo "not $ranks results:"; echo "$output"; exit 1; }
  awk '/of 1000 correct/ && $3 < 900 {exit 1}' <<<"$output" || { echo "it has not learned:"; echo "$output"; exit 1; }
  [ "$(sed -n 's/rank [0-9]*: //p' <<<"$output" | sort -u | wc -l)" = 1 ] || { echo "ranks differ:"; echo "$output"; exit 1; }
  [ -s "$folder/net.$ranks.pt" ]
done
