#!/usr/bin/env bash
# train_image_short_calls_test.sh PACELINE TRAIN_IMAGE SHORT_CALLS LIBRARY: a training whose system calls are interrupted, refused and shortened ends
# with the same bits as an undisturbed one, over shared memory and over TCP, plain and encrypted. SHORT_CALLS_SEED repeats a run.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"
short_calls=("$3" "$4")
export SHORT_CALLS_SEED=${SHORT_CALLS_SEED:-$RANDOM}
echo "SHORT_CALLS_SEED=$SHORT_CALLS_SEED"
gzip "$work"/idx/*labels*  # unpacked by the program

job=("$train_image" "${data[@]}" --epochs 1 --checkpoint-every 4)
# shellcheck disable=SC2016
same_bits='
  plain=$(ls -d "$1"/plain/step-* | tail -n 1) short=$(ls -d "$1/$2"/step-* | tail -n 1)
  [ "${plain##*/}" = "${short##*/}" ] && "$3" checkpoint diff "$plain" "$short" && echo "$2 the same"'
expect undisturbed 0 'test accuracy' "${run2[@]}" "${job[@]}" --checkpoint-dir "$work/plain"
for how in shm tcp encrypted; do
  flags=()
  export PACELINE_TRANSPORT=shm
  if [ $how != shm ]; then PACELINE_TRANSPORT=tcp; fi
  if [ $how = encrypted ]; then flags=(--encrypt); fi
  expect "$how" 0 ' shortened' "${short_calls[@]}" "${run2[@]}" "${flags[@]}" "${job[@]}" --checkpoint-dir "$work/$how"
  expect "${how}_has_the_same_bits" 0 "$how the same$" bash -c "$same_bits" _ "$work" $how "$paceline"
done
exit "$((failures > 0))"
