#!/usr/bin/env bash
# train_ps_test.sh PACELINE PROGRAM: trains the CNN in the three modes; a synchronous run has the same numbers in shared memory and on servers, and
# with a slow trainer the others take its batches.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"
job=("$2" --data-dir "$work/idx" --threads 1 --batch-size 16 --lr 0.01 --momentum 0.5)

# shellcheck disable=SC2016
expect shared 0 'epoch 2: test accuracy (9|100)' bash -o pipefail -c '"$@" | tee "$0"' "$work/shared" "${run2[@]}" "${job[@]}" --epochs 3
# shellcheck disable=SC2016
expect on_servers 0 'parameters on 2 servers' bash -o pipefail -c '"$@" | tee "$0"' "$work/served" "$paceline" run --roles trainer=2,server=2 \
  --until trainer "${job[@]}" --epochs 3
epochs() { sed -nE 's/^(\[[a-z0-9]*\] *)?(epoch )/\2/p' "$1"; }
export -f epochs
# shellcheck disable=SC2016
expect they_have_the_same_numbers 0 '^3 the same$' bash -c 'cmp <(epochs "$1") <(epochs "$2") && echo "$(epochs "$1" | wc -l) the same"' _ \
  "$work/shared" "$work/served"
for mode in bounded:4 asynchronous; do
  # shellcheck disable=SC2016
  expect "$mode" 0 'epoch 3: test accuracy (9|100)' bash -o pipefail -c '"$@" | tee "$0"' "$work/$mode" "${run2[@]}" "${job[@]}" --epochs 4 \
    --consistency "$mode" --slow-down 3
  # shellcheck disable=SC2016
  expect "${mode}_is_not_held_up" 0 '^the first took more$' awk '/^ *batches/ {if ($2 + 0 > $3 + 0) print "the first took more"; else print}' "$work/$mode"
done
expect staleness_is_bounded 0 'staleness .*, [0-4] at most' cat "$work/bounded:4"
exit "$((failures > 0))"
