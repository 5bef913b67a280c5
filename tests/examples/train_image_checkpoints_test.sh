#!/usr/bin/env bash
# train_image_checkpoints_test.sh PACELINE TRAIN_IMAGE: which checkpoints a run continues from; how runs end, and what they recommend next.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"
data+=(--model net)  # a quarter of the time of the cnn

# No run may begin in a folder that has checkpoints. A restart does not help, because it is a usage error.
run1=("$train_image" "${data[@]}" --epochs 1)
expect used_by_one 0 'test accuracy' "${run1[@]}" --checkpoint-dir "$work/used" --checkpoint-every 5
expect begun_in_a_used_folder 2 'used: it has checkpoints already, the newest of step 19; to continue that run, resume it \(--resume, CheckpointOptions::resume\)' \
  "${run1[@]}" --checkpoint-dir "$work/used" --seed 7
expect not_restarted_in_a_used_folder 2 'a usage error .exit code 2. before any progress; restarting does not help' \
  "${run2[@]}" --max-restarts 1 "$train_image" "${data[@]}" --seed 7 --max-steps 4 --checkpoint-dir "$work/used" --checkpoint-every 2
# A job of the same name is not the same job: an older job may have had that name.
again=("${run2[@]}" --rdzv-id again --max-restarts 1 "$train_image" "${data[@]}" --max-steps 6 --checkpoint-dir "$work/again" --checkpoint-every 2)
expect job_of_a_name 0 'test accuracy' "${again[@]}"
expect next_job_of_that_name 2 'it has checkpoints already, the newest of step 6' "${again[@]}" --seed 7
expect resumed_after_all 0 'resumed at step 6' "${again[@]}" --resume

# Without --resume, a restart continues from what its own job has left; it also works before there is a checkpoint.
dies=(--max-restarts 1 --chaos 'kill:rank=1@step8')
long=("$train_image" "${data[@]}" --epochs 30)
expect restarted 0 'resumed at step [0-9]*[02468]$' "${run2[@]}" "${dies[@]}" "${long[@]}" --max-steps 40 \
  --checkpoint-dir "$work/restarted" --checkpoint-every 2
expect restarted_from_nothing 0 'no checkpoint yet; from the beginning' "${run2[@]}" "${dies[@]}" "${long[@]}" --max-steps 40 \
  --checkpoint-dir "$work/nothing" --checkpoint-every 1000
# shellcheck disable=SC2016
expect resumed_and_restarted 0 '^2$' bash -c '"$@" | grep -c "resumed at step 4"' _ "${run2[@]}" "${dies[@]}" "${long[@]}" \
  --max-steps 70 --checkpoint-dir "$work/restarted" --checkpoint-every 2 --resume

# The user named a file for memory checkpoints, which holds the state of an older run.
memory=("${run2[@]}" --max-restarts 1 "$train_image" "${data[@]}" --max-steps 8 --memory-checkpoint-every 2)
export PACELINE_MEMORY_CHECKPOINT=$work/state
expect memory_of_one 0 'test accuracy' "${memory[@]}" --checkpoint-dir "$work/memory"
expect memory_is_used 2 'PACELINE_MEMORY_CHECKPOINT. holds step 8 of an earlier run' "${memory[@]}" --checkpoint-dir "$work/other"
expect memory_of_another_run 2 'holds step 8 of a run other than that of .*used' "${memory[@]}" --checkpoint-dir "$work/used" --resume
expect memory_resumed 0 'resumed at step 8, from memory' "${memory[@]}" --checkpoint-dir "$work/memory" --resume
unset PACELINE_MEMORY_CHECKPOINT

# The seed belongs to the run: the same samples follow whether or not it is given again.
expect straight 0 'test accuracy' "${run1[@]}" --seed 3 --max-steps 16 --metrics "$work/straight.jsonl"
expect half 0 'test accuracy' "${run1[@]}" --seed 3 --max-steps 8 --checkpoint-dir "$work/seed" --checkpoint-every 8
expect another_seed 2 '.-seed 4: the run in .*seed has the seed 3' "${run1[@]}" --seed 4 --max-steps 16 --checkpoint-dir "$work/seed" --resume
expect same_seed 0 'resumed at step 8' "${run1[@]}" --max-steps 16 --checkpoint-dir "$work/seed" --resume --metrics "$work/resumed.jsonl"
# shellcheck disable=SC2016
expect same_losses 0 '^equal$' bash -c 'cmp <(grep event\":\"step\" "$1" | tail -n 8) <(grep event\":\"step\" "$2") && echo equal' _ \
  "$work/straight.jsonl" "$work/resumed.jsonl"

# A checkpoint of another run lies in this run's directory.
expect own_run 0 'test accuracy' "${run1[@]}" --seed 3 --max-steps 4 --checkpoint-dir "$work/own"
expect other_run 0 'test accuracy' "${run1[@]}" --seed 7 --max-steps 8 --checkpoint-dir "$work/foreign"
cp -r "$work/foreign/step-00000008" "$work/own"
expect foreign_is_refused 2 'own: its newest checkpoint, step-00000008, belongs to run [0-9a-f]* \(seed 7\), but the directory belongs to run [0-9a-f]* \(seed 3\)' \
  "${run1[@]}" --checkpoint-dir "$work/own" --resume
expect foreign_when_told 0 'resumed at step 8$' "${run1[@]}" --max-steps 10 --checkpoint-dir "$work/own" --resume --resume-other-run
expect foreign_is_its_own_now 0 'resumed at step 10$' "${run1[@]}" --max-steps 12 --checkpoint-dir "$work/own" --resume

# 4 ranks pad 9 samples to 12; then one rank continues at the end of the epoch.
/usr/bin/python3 - "$work" <<'PY'
import os, struct, sys
folder = sys.argv[1] + "/nine"
os.makedirs(folder)
for prefix, count in (("train", 9), ("t10k", 4)):
    with open(f"{folder}/{prefix}-images-idx3-ubyte", "wb") as f:
        f.write(struct.pack(">4BIII", 0, 0, 8, 3, count, 28, 28) + bytes(i % 251 for i in range(count * 784)))
    with open(f"{folder}/{prefix}-labels-idx1-ubyte", "wb") as f:
        f.write(struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(range(count)))
PY
nine=("$train_image" --dataset mnist --data-dir "$work/nine" --batch-size 1 --epochs 2 --checkpoint-dir "$work/padded" --checkpoint-every 3)
expect four_ranks 0 'test accuracy' "$paceline" run --nproc-per-node 4 "${nine[@]}" --max-steps 3
expect one_rank_after_four 0 'resumed at step 3' "${nine[@]}" --resume

# A run is resumed with other data, or with another learning rate.
expect other_data 2 'the run in .*seed trains on .* .600 images., this program was given .* .9 images.' \
  "$train_image" --dataset mnist --data-dir "$work/nine" --model net --checkpoint-dir "$work/seed" --resume
expect other_rate 0 'learning rate 0.002 from here on, 0.001 before' "${run1[@]}" --lr 0.002 --max-steps 18 --checkpoint-dir "$work/seed" --resume
expect that_rate_stays 0 '^0$' bash -c '"$@" | grep -c "learning rate"; true' _ "${run1[@]}" --max-steps 19 --checkpoint-dir "$work/seed" --resume

# A run whose state could not be written is not a success, even if everything else worked.
expect full_disk 1 'the last checkpoint could not be written' bash -c 'trap "" XFSZ; ulimit -f 100; exec "$@"' _ \
  "${run1[@]}" --checkpoint-dir "$work/full"
expect full_disk_reports 1 'test accuracy' bash -c 'trap "" XFSZ; ulimit -f 100; exec "$@"' _ "${run1[@]}" --checkpoint-dir "$work/full"
touch "$work/stop"
expect stopped_on_a_full_disk 1 'stopped after step 1 by the file .*stop; the state could not be written' \
  bash -c 'trap "" XFSZ; ulimit -f 100; exec "$@"' _ "${run1[@]}" --checkpoint-dir "$work/full" --stop-file "$work/stop"

# A request to stop at the very last step ends the run as usual.
touch "$work/stop"
expect stop_at_the_end 0 'test accuracy' "${run1[@]}" --batch-size 600 --checkpoint-dir "$work/end" --stop-file "$work/stop"

# The command that a run recommends works as printed.
hint() { sed -n 's/^  next  *//p' "$1"; }
(cd "$(dirname "$train_image")" && PATH=/usr/bin:/bin "./$(basename "$train_image")" "${data[@]}" --epochs 1 --max-steps 2) >"$work/hint"
# shellcheck disable=SC2016
expect hint_of_one 0 '2 ranks x' bash -c 'cd "$1" && PATH=/usr/bin:/bin bash -c "$2"' _ "$(dirname "$train_image")" "$(hint "$work/hint")"
limited=("${run2[@]}" "$train_image" "${data[@]}" --max-steps 4 --checkpoint-every 2 --checkpoint-dir "$work/hints")
"${limited[@]}" >"$work/hint"
read -ra more <<<"$(hint "$work/hint" | sed 's/^the same with //')"
expect hint_after_max_steps 0 ' s, 4 steps' "${limited[@]}" "${more[@]}"
# It works also if no checkpoint was due before the end.
sparse=("${run2[@]}" "$train_image" "${data[@]}" --max-steps 3 --checkpoint-dir "$work/sparse")
"${sparse[@]}" >"$work/hint"
read -ra more <<<"$(hint "$work/hint" | sed 's/^the same with //')"
expect hint_without_a_checkpoint_before 0 'resumed at step 3$' "${sparse[@]}" "${more[@]}"
ended=("${run2[@]}" "$train_image" "${data[@]}" --epochs 1 --checkpoint-dir "$work/ended")
"${ended[@]}" >"$work/hint"
read -ra more <<<"$(hint "$work/hint" | sed 's/^the same with //')"
expect hint_after_an_epoch 0 ' s, 10 steps' "${ended[@]}" "${more[@]}"

# It works for every schedule and every kind of end. A one-cycle schedule has no steps left, so a new run begins.
for run in "constant --epochs 1" "step --max-steps 3" "cosine --max-steps 3 --lr-schedule-steps 5" "plateau --max-steps 3" \
  "one-cycle --epochs 1" "one-cycle --max-steps 3" "one-cycle --max-steps 3 --lr-schedule-steps 5"; do
  read -ra flags <<<"$run"
  scheduled=("$train_image" "${data[@]}" --lr-schedule "${flags[@]}" --checkpoint-dir "$work/$run")
  "${scheduled[@]}" >"$work/hint"
  eval "more=($(hint "$work/hint" | sed 's/^the same with //'))"
  wanted='resumed at step [0-9]+$'
  [[ $run != one-cycle* || $run == *5 ]] || wanted='test accuracy'
  # shellcheck disable=SC2154
  expect "hint_after_$run" 0 "$wanted" "${scheduled[@]}" "${more[@]}"
done

# The last batch, of one sample, is dropped.
expect drop_last 0 ' s, 1 steps' "$train_image" "${data[@]}" --epochs 1 --batch-size 599 --drop-last

exit "$((failures > 0))"
