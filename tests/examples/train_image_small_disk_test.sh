#!/usr/bin/env bash
# train_image_small_disk_test.sh PACELINE TRAIN_IMAGE: a disk with room for all checkpoints that are kept, but not for one more. Saving must continue,
# and the log and the closing table must report it.
set -uo pipefail
[ "$(id -u)" = 0 ] || { echo "skipped: to mount a small disk needs root"; exit 77; }
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"

run1=("$train_image" "${data[@]}" --epochs 1)
expect measured 0 'test accuracy' "${run1[@]}" --max-steps 1 --checkpoint-dir "$work/one"
size=$(($(du -k "$work/one/step-00000001" | cut -f1) * 7 / 2 + 16))
mkdir "$work/small"
mount -t tmpfs -o "size=${size}k" tmpfs "$work/small" 2>/dev/null || { echo "skipped: no file system can be mounted here"; exit 77; }
trap 'umount "$work/small"; rm -rf "$work"' EXIT
small=("${run1[@]}" --checkpoint-every 1 --max-steps 9 --checkpoint-dir "$work/small/run")
# shellcheck disable=SC2016
expect small_disk 0 '^  checkpoints +the disk has room for 3; the oldest is removed before each save' bash -c '"$@" 2>"$0"' "$work/small.err" "${small[@]}"
expect small_disk_is_said_once 0 '^1$' grep -c 'the disk is full: there is room for 3 checkpoints' "$work/small.err"
expect small_disk_resumed 0 'resumed at step 9$' "${small[@]}" --resume --max-steps 10
exit "$((failures > 0))"
