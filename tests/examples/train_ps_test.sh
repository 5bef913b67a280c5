#!/usr/bin/env bash
# train_ps_test.sh LAUNCHER PROGRAM: trains the CNN in the three modes; a synchronous run has the same numbers in shared memory and on servers.
set -euo pipefail
launcher=$1 program=$2
flags=(--max-steps 60 --epochs 1 --threads 1 --batch-size 16)
run() { "$launcher" run "$@" | sed 's/^\[[a-z0-9]*\] *//'; }
accuracy() { sed -n 's/^epoch 0: test accuracy \([0-9.]*\)%.*/\1/p' <<<"$1"; }

shared=$(run --nproc-per-node 2 "$program" "${flags[@]}")
served=$(run --roles trainer=2,server=2 --until trainer "$program" "${flags[@]}")
line=$(grep '^epoch 0' <<<"$shared")
[ "$line" = "$(grep '^epoch 0' <<<"$served")" ] || { echo "other numbers on servers:"; echo "$shared"; echo "$served"; exit 1; }
for mode in bounded:4 asynchronous; do
  out=$(run --nproc-per-node 2 "$program" "${flags[@]}" --consistency "$mode" --slow-down 1)
  echo "$mode: $(accuracy "$out")"
  awk -v a="$(accuracy "$out")" 'BEGIN {exit !(a > 50)}' || { echo "$out"; exit 1; }
  if [ "$mode" = bounded:4 ]; then
    awk '/^ *staleness/ {exit !($6 <= 4)}' <<<"$out" || { echo "$out"; exit 1; }
  fi
done
echo "synchronous: $(accuracy "$shared")"
