#!/usr/bin/env bash
# train_image_test.sh PACELINE TRAIN_IMAGE MPIEXEC: the main example as users run it, with good and bad input.
set -uo pipefail
mpiexec=$3  # of the MPI in this build; empty if it has none
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"

expect alone 0 'test accuracy +(9[0-9]|100)' "$train_image" "${data[@]}" --epochs 3
expect two_ranks 0 '2 ranks x 1 thread; backend paceline, transport shm' "${run2[@]}" "$train_image" "${data[@]}" --epochs 1
expect over_tcp 0 'transport tcp' env PACELINE_TRANSPORT=tcp "${run2[@]}" "$train_image" "${data[@]}" --epochs 1
expect net_with_sgd 0 'test accuracy' "${run2[@]}" "$train_image" "${data[@]}" --model net --optimizer sgd --lr 0.05 --augment crop
expect hand_set_variables 0 'launched by env' bash -c '
  export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 12000)) WORLD_SIZE=2  # below the ports that the kernel assigns
  RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "$@" & RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "$@"; code=$?; wait; exit $code' \
  _ "$train_image" "${data[@]}" --max-steps 3

# With every backend of this build that works on host memory, training reaches the same accuracy. (A sum of two has the same bits everywhere.)
accuracy=$("${run2[@]}" "$train_image" "${data[@]}" --epochs 1 --seed 5 | grep -o 'test accuracy.*')
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
for backend in gloo mpi oneccl c10d; do
  # c10d is LibTorch's, so paceline doctor does not list it.
  if [ "$backend" = c10d ]; then
    missing=$("${run2[@]}" "$train_image" "${data[@]}" --max-steps 1 --backend c10d 2>&1 | grep -o "'c10d' is not part of this build.*" || true)
  else
    missing=$("$paceline" doctor | grep -E "backend $backend " | grep -v "^OK" || true)
  fi
  if [ -n "$missing" ]; then
    echo "not tested: backend $backend is not part of this build"
    continue
  fi
  launch=("${run2[@]}")
  [ "$backend" = mpi ] && launch=("$mpiexec" -n 2 env OMP_NUM_THREADS=1)
  expect "backend_$backend" 0 "backend $backend, .*" bash -o pipefail -c '"$@" | tee "$0"' "$work/backend.out" \
    "${launch[@]}" "$train_image" "${data[@]}" --epochs 1 --seed 5 --backend "$backend"
  expect "accuracy_$backend" 0 "^${accuracy//[()]/.}\$" grep -o 'test accuracy.*' "$work/backend.out"
done

# mpirun gives its ranks a pseudo-terminal, but its own output goes to a pipe here.
if [ -n "$mpiexec" ]; then
  # shellcheck disable=SC2016
  expect plain_lines_in_a_pipe 0 '^0 escapes$' env TERM=xterm bash -c '"$@" | cat >"$0" && grep -q "test accuracy" "$0" &&
    echo "$(grep -c "$(printf "\033")" "$0") escapes"' "$work/piped" "$mpiexec" -n 2 env OMP_NUM_THREADS=1 "$train_image" "${data[@]}" --epochs 2
fi

data+=(--model net)  # a quarter of the time of the cnn

# A run that was interrupted and resumed has the same final loss, digit for digit, as one that was not.
# shellcheck disable=SC2016
expect straight 0 'test accuracy' bash -o pipefail -c '"$@" | tee "$0"' "$work/straight.out" "${run2[@]}" "$train_image" "${data[@]}" --epochs 2 \
  --metrics "$work/straight.jsonl" --tensorboard "$work/straight_board"
expect first_half 0 'test accuracy' "${run2[@]}" "$train_image" "${data[@]}" --epochs 2 --max-steps 13 \
  --checkpoint-dir "$work/run" --checkpoint-every 6
expect second_half 0 'resumed at step 13' "${run2[@]}" "$train_image" "${data[@]}" --epochs 2 --checkpoint-dir "$work/run" --resume \
  --metrics "$work/resumed.jsonl"
if [ "$(tail -n 2 "$work/straight.jsonl" | head -n 1)" != "$(tail -n 2 "$work/resumed.jsonl" | head -n 1)" ]; then
  echo "FAILED resume: the last epoch differs"
  tail -n 2 "$work/straight.jsonl" "$work/resumed.jsonl"
  failures=$((failures + 1))
fi

# Steps and epochs have the same numbers: the steps of epoch 1, the end of epoch 1, then the same for epoch 2.
counted=$(grep -oE '"event":"(step|epoch)".*"epoch":[0-9]+|"event":"epoch","epoch":[0-9]+' "$work/straight.jsonl" |
  sed -E 's/"event":"([a-z]+)".*"epoch":([0-9]+)/\1 \2/' | uniq | tr '\n' ' ')
if [ "$counted" != "step 1 epoch 1 step 2 epoch 2 " ]; then
  echo "FAILED epochs: the metrics count '$counted'"
  failures=$((failures + 1))
fi
# The screen shows the same numbers, and TensorBoard has the same results at the last step of each epoch.
expect epochs_on_the_screen_and_in_tensorboard 0 '^alike: 1 2 $' /usr/bin/python3 "$(dirname "$0")/compare_epochs.py" \
  "$work/straight.jsonl" "$work/straight.out" "$work/straight_board"

# A run is asked to stop by a file, then by SIGTERM and by SIGUSR1 to the launcher, and continued each time: exit code 85, and the same end.
expect reference 0 'test accuracy' "${run2[@]}" "$train_image" "${data[@]}" --epochs 8 --checkpoint-dir "$work/straight"
stoppable=("${run2[@]}" "$train_image" "${data[@]}" --epochs 8 --checkpoint-dir "$work/stopped" --resume --metrics "$work/stops.jsonl"
  --stop-file "$work/stop")
touch "$work/stop"
expect stop_by_file 85 'stopped after step 1 by the file .*stop; to continue: the same command with --resume' "${stoppable[@]}"
for signal in TERM USR1; do
  steps=$(grep -c '"event":"step"' "$work/stops.jsonl")
  "${stoppable[@]}" >"$work/stop.$signal" 2>&1 &
  launcher=$!
  for ((i = 0; i < 1000; ++i)); do
    [ "$(grep -c '"event":"step"' "$work/stops.jsonl")" -gt $((steps + 3)) ] && break
    sleep 0.02
  done
  kill -"$signal" "$launcher"
  wait "$launcher"
  # shellcheck disable=SC2016
  expect "stop_by_$signal" 85 "stopped after step [0-9]+ by SIG$signal;" bash -c 'cat "$1"; exit "$2"' _ "$work/stop.$signal" $?
  expect "launcher_on_$signal" 0 'all ranks stopped as agreed; start the job again' cat "$work/stop.$signal"
done
expect after_the_stops 0 'test accuracy' "${stoppable[@]}"
last=$(basename "$(find "$work/straight" -maxdepth 1 -name 'step-*' | sort | tail -n 1)")
if ! "$paceline" checkpoint diff "$work/straight/$last" "$work/stopped/$last"; then
  echo "FAILED agreed stop: the last checkpoints differ"
  failures=$((failures + 1))
fi

# Ctrl-C at a terminal: alone, under the launcher and under mpirun, which has an exit code of its own and sends its ranks SIGTERM for Ctrl-C. Open MPI
# gives them one second; version 4 has a variable for more. With version 5 the checkpoint of the last step may come too late, so an earlier one is
# fine.
press=("$(dirname "$0")/press_ctrl_c.py")
interrupted=("$train_image" "${data[@]}" --epochs 2000)
said='stopped after step [0-9]+ by SIGINT; to continue: the same command with --resume'
expect ctrl_c_alone 85 "$said" "${press[@]}" "$work/int1.jsonl" 4 "${interrupted[@]}" --checkpoint-dir "$work/int1" --metrics "$work/int1.jsonl"
expect ctrl_c_run 85 "$said" "${press[@]}" "$work/int2.jsonl" 4 "${run2[@]}" "${interrupted[@]}" --checkpoint-dir "$work/int2" \
  --metrics "$work/int2.jsonl"
[ -n "$mpiexec" ] && OMPI_MCA_odls_base_sigkill_timeout=30 "${press[@]}" "$work/int3.jsonl" 4 "$mpiexec" -n 2 "${interrupted[@]}" --checkpoint-dir "$work/int3" \
  --metrics "$work/int3.jsonl" >"$work/int3.out" 2>&1
for run in 1 2 ${mpiexec:+3}; do
  step=$(grep -c '"event":"step"' "$work/int$run.jsonl")
  saved=$step
  [ "$run" = 3 ] && "$mpiexec" --version | grep 'Open MPI) [5-9]' >/dev/null && saved='[0-9]+'
  expect "ctrl_c_saved_$run" 0 "resumed at step $saved\$" "${interrupted[@]}" --max-steps $((step + 1)) --checkpoint-dir "$work/int$run" --resume
done

# A run continues from the memory that the launcher keeps, without any file on a disk. Without a launcher, PACELINE_MEMORY_CHECKPOINT must name a
# file.
memory=("${run2[@]}" "$train_image" "${data[@]}" --epochs 2 --memory-checkpoint-every 5 --checkpoint-dir)
export PACELINE_MEMORY_CHECKPOINT=$work/state
expect memory_first 0 'test accuracy' "${memory[@]}" "$work/memory" --max-steps 8
rm -r "$work/memory"
expect memory_resumed 0 'resumed at step 5, from memory' "${memory[@]}" "$work/memory" --resume
unset PACELINE_MEMORY_CHECKPOINT
expect memory_of_the_launcher 0 'test accuracy' "${memory[@]}" "$work/launchers_memory"
expect memory_needs_a_launcher 2 'PACELINE_MEMORY_CHECKPOINT' "$train_image" "${data[@]}" --checkpoint-dir "$work/memory" \
  --memory-checkpoint-every 5

# The timeline of the ranks, and scalars for TensorBoard.
expect timeline 0 "timeline: $work/trace.json \\([0-9]+ spans of 2 ranks\\)" "$paceline" run --nproc-per-node 2 --timeline "$work/trace.json" \
  "$train_image" "${data[@]}" --epochs 1 --checkpoint-dir "$work/traced" --tensorboard "$work/board"
# shellcheck disable=SC2016
expect trace_has_everything 0 '^complete$' /usr/bin/python3 -c '
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
spans = [(e["pid"], e["name"]) for e in events if e["ph"] == "X"]
both = ["step", "data", "forward", "backward", "optimizer", "evaluation", "checkpoint", "all_gather"]
wanted = {(rank, name) for rank in (0, 1) for name in both} | {(0, "write checkpoint")}
missing = wanted - set(spans)
steps = spans.count((0, "step"))
print("complete" if not missing and steps == spans.count((1, "step")) == 10 else (missing, steps))' "$work/trace.json"
expect event_file 0 'events.out.tfevents' ls "$work/board"

# Bad input is refused.
expect no_folder 2 'data folder /nonexistent does not exist' "$train_image" --dataset mnist --data-dir /nonexistent
mkdir "$work/empty"
expect empty_folder 2 'has neither train-images-idx3-ubyte nor' "$train_image" --dataset mnist --data-dir "$work/empty"
expect cifar_needs_folder 2 'needs --data-dir' "$train_image" --dataset cifar10
cp -r "$work/idx" "$work/short"
truncate -s 1000 "$work/short/train-images-idx3-ubyte"
expect truncated 1 'train-images-idx3-ubyte: ends at byte' "$train_image" --dataset mnist --data-dir "$work/short"
cp -r "$work/idx" "$work/label"
printf '\x63' | dd of="$work/label/train-labels-idx1-ubyte" bs=1 seek=20 conv=notrunc status=none
expect label_out_of_range 1 'train-labels-idx1-ubyte: byte 20: the label 99' "${run2[@]}" "$train_image" --dataset mnist --data-dir "$work/label"
cp -r "$work/idx" "$work/wide"
for images in "$work"/wide/*images*; do
  printf '\0\0\0\x0e\0\0\0\x38' | dd of="$images" bs=1 seek=8 conv=notrunc status=none
done
for flag in "--batch-size 0" "--epochs -1" "--lr x" "--dataset nothing" "--threads 99999" "--resume" "--stop-file x" "--memory-checkpoint-every 3" "--optimizer rms" \
  "--lr nan" "--momentum nan" "--weight-decay inf" "--seed -1" "--model net --dataset cifar10"; do
  # shellcheck disable=SC2086
  expect "flag $flag" 2 "${flag%% *}" "$train_image" "${data[@]}" $flag
done
expect mistyped_flag 2 "train_image: unknown option --epoch; did you mean --epochs\\?; see train_image --help" "$train_image" --epoch 3
expect mistyped_word 2 "train_image: --optimizer: 'adma' is not one of adam, adamw, sgd, lamb, lars; did you mean adam\\?" "$train_image" --optimizer adma
expect out_of_range 2 "train_image: --batch-size: '0' is not a whole number from 1 to " "$train_image" --batch_size 0
expect word_too_many 2 "train_image: 'mnist' was not expected" "$train_image" mnist
expect other_size 2 '28x28, those of mnist are 1x14x56' "$train_image" --dataset mnist --data-dir "$work/wide" --model net
expect uneven_global_batch 0 '86 steps' "${run2[@]}" "$train_image" "${data[@]}" --global-batch-size 7 --micro-batch-size 2 --epochs 1
expect rank_outside_world 2 'RANK' env RANK=2 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 "$train_image" "${data[@]}"

exit "$((failures > 0))"
