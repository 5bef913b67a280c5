#!/usr/bin/env bash
# train_recommender_test.sh LAUNCHER PROGRAM: the AUC of two trainers is that of one process with the same batches, for every consistency, also with
# servers, and near the teacher's own.
set -euo pipefail
launcher=$1 program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
data=(--samples 200000 --fields 4 --rows 2000 --width 8 --hidden 16 --threads 1 --row-lr 0.05 --lr 0.003 --skew 1.05)

auc() { awk '/^ *AUC/ {print $2}' "$1"; }
"$program" "${data[@]}" --batch-size 256 >"$folder/alone"
alone=$(auc "$folder/alone")
teacher=$(sed -n 's/^ *AUC.*own: \([0-9.]*\)).*/\1/p' "$folder/alone")
echo "alone: AUC $alone, teacher $teacher"
awk -v a="$alone" -v t="$teacher" 'BEGIN {exit !(a > 0.6 && a < t && t - a < 0.05)}' || { cat "$folder/alone"; exit 1; }

check() {  # NAME LAUNCHER-OPTIONS... -- PROGRAM-OPTIONS...
  local name=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  "$launcher" run "${options[@]}" "$program" "${data[@]}" --batch-size 128 "$@" >"$folder/out" || { cat "$folder/out"; exit 1; }
  local got
  got=$(sed 's/^\[[a-z0-9]*\] *//' "$folder/out" | awk '/^ *AUC/ {print $2}')
  echo "$name: AUC $got"
  awk -v a="$alone" -v b="$got" 'BEGIN {d = a - b; exit !(d < 0.002 && d > -0.002)}' || { echo "more than 0.002 from $alone"; cat "$folder/out"; exit 1; }
}
two=(--nproc-per-node 2)
check synchronous "${two[@]}" -- --consistency synchronous
check 'without prefetch' "${two[@]}" -- --consistency synchronous --no-prefetch
check 'bounded(0)' "${two[@]}" -- --consistency bounded:0
check 'bounded(1)' "${two[@]}" -- --consistency bounded:1
check 'bounded(4)' "${two[@]}" -- --consistency bounded:4
check asynchronous "${two[@]}" -- --consistency asynchronous
check 'two servers' --roles trainer=2,server=2 --until trainer -- --consistency synchronous
grep -q 'rows on 2 servers' "$folder/out"
sed 's/^\[[a-z0-9]*\] *//' "$folder/out" | tail -8
