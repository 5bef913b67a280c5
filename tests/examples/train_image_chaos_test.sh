#!/usr/bin/env bash
# train_image_chaos_test.sh PACELINE TRAIN_IMAGE: ranks are killed, stopped and slowed in the middle of a training. It must end with the same bits as
# an undisturbed one, and the closing table must count the faults.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"

job=("$train_image" "${data[@]}" --model net --batch-size 16 --epochs 40 --max-steps 200 --memory-checkpoint-every 5)
faults='kill:rank=1@step23,stop:rank=1:for=0.3s@step30,kill:rank=0@step61,slow:rank=1:for=0.5s@step64,kill:rank=0@step75'
expect undisturbed 0 ' s, 200 steps' "${run2[@]}" --max-restarts 1 "${job[@]}" --checkpoint-dir "$work/plain"
# The step of a fault is counted since the rank's last start.
expect disturbed 0 'faults +5 .kill 3, slow 1, stop 1., seed 7' "${run2[@]}" --max-restarts 9 --chaos "$faults" --chaos-seed 7 --log-dir "$work/logs" \
  "${job[@]}" --checkpoint-dir "$work/chaos"
# shellcheck disable=SC2016
expect the_same_bits 0 '200 the same$' bash -c '
  plain=$(ls -d "$1"/plain/step-* | tail -n 1) chaos=$(ls -d "$1"/chaos/step-* | tail -n 1)
  [ "${plain##*/}" = "${chaos##*/}" ] && "$2" checkpoint diff "$plain" "$chaos" && echo "$((10#${plain##*-})) the same"' _ "$work" "$paceline"
exit "$((failures > 0))"
