#!/usr/bin/env bash
# train_image_steps_test.sh PACELINE TRAIN_IMAGE: the flags of a step and of communication. Each one changes the losses, and a run that was
# interrupted and resumed has the same losses, rates and accuracy as one that was not.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"
data+=(--model net)  # a quarter of the time of the cnn

run=("${run2[@]}" "$train_image" "${data[@]}" --epochs 40 --lr-schedule-steps 16 --seed 3)

# Prints the steps, without their times, and the accuracies.
results() { grep -E '"event":"(step|epoch|end)"' "$1" | grep -oE '"(step|loss|learning_rate|accuracy|test_loss)":[^,}]*'; }
# first_and_last FILE: the learning rates of the first and the last step.
first_and_last() { grep '"event":"step"' "$1" | sed -n '1p;$p' | grep -oE '"learning_rate":[^,}]*' | cut -d: -f2 | paste -sd' '; }
export -f results first_and_last

# goes_on NAME FLAGS...: 16 steps in one run give the same results as 8 steps, a resume and 8 more.
goes_on() {
  local name=$1
  shift
  local at="$work/$name"
  expect "$name" 0 ' s, 16 steps' "${run[@]}" "$@" --max-steps 16 --metrics "$at.straight"
  expect "${name}_first" 0 ' s, 8 steps' "${run[@]}" "$@" --max-steps 8 --metrics "$at.first" --checkpoint-dir "$at.run"
  expect "${name}_resumed" 0 'resumed at step 8' "${run[@]}" "$@" --max-steps 16 --metrics "$at.second" --checkpoint-dir "$at.run" --resume
  # shellcheck disable=SC2016
  expect "${name}_is_the_same" 0 '^the same$' bash -c '
    wanted=$(results "$1.straight")
    [ "$wanted" = "$(grep -v "\"end\"" "$1.first" >"$1.steps"; results "$1.steps"; results "$1.second")" ] && [ -n "$wanted" ] && echo "the same"' _ "$at"
}
# differs NAME OTHER: the flags of NAME have an effect: its results are not those of OTHER.
differs() { expect "$1_is_not_$2" 1 '' cmp <(results "$work/$1.straight") <(results "$work/$2.straight"); }

goes_on plain
goes_on cosine --lr-schedule cosine --warmup 3 --clip-norm 0.5 --ema 0.9
# A checkpoint has both the last and the averaged weights; --weights writes the averaged ones.
average=("${run2[@]}" "$train_image" "${data[@]}" --max-steps 4 --ema 0.9)
expect average 0 ' s, 4 steps' "${average[@]}" --checkpoint-dir "$work/average" --weights "$work/average.safetensors"
expect average_exported 0 'step 4' "$paceline" checkpoint export "$work/average" "$work/all.safetensors"
expect last_weights_exported 0 'step 4' "$paceline" checkpoint export --weights "$work/average" "$work/last.safetensors"
expect average_is_in_the_export 0 '^averages and last weights$' /usr/bin/python3 - "$work/average.safetensors" "$work/all.safetensors" "$work/last.safetensors" <<'PY'
import json, struct, sys
def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        begin = f.tell()
        header.pop("__metadata__", None)
        def read(entry):
            first, last = entry["data_offsets"]
            f.seek(begin + first)
            return f.read(last - first)
        return {name: read(entry) for name, entry in header.items()}
written, everything, last = (tensors(path) for path in sys.argv[1:])
averages = {name[len("average.weight."):]: data for name, data in everything.items() if name.startswith("average.weight.")}
assert averages and all(written[name.removeprefix("net.")] == data for name, data in averages.items()), "averages"
assert all(everything["model." + name] == data for name, data in last.items()), "last weights"
assert any(last[name] != data for name, data in averages.items()), "they are the same"
print("averages and last weights")
PY
goes_on one_cycle --lr-schedule one-cycle --clip-value 0.001 --optimizer sgd --lr 0.05 --precision autocast-bf16
goes_on step --lr-schedule step --rate-every 5 --precision bf16 --optimizer adamw
goes_on plateau --lr-schedule plateau --optimizer sgd --momentum 0 --lr 1e-6 --batch-size 300
goes_on powersgd --hook powersgd --powersgd-rank 2 --hook-start 3
goes_on topk --hook topk --topk-density 0.05
for hook in bf16 fp16; do  # without a state
  expect "$hook" 0 ' s, 16 steps' "${run[@]}" --hook "$hook" --max-steps 16 --metrics "$work/$hook.straight"
done
for name in cosine powersgd topk bf16 fp16; do differs $name plain; done
expect clipping_has_an_effect 0 ' s, 16 steps' "${run[@]}" --max-steps 16 --lr-schedule cosine --warmup 3 --ema 0.9 --metrics "$work/unclipped.straight"
differs cosine unclipped
expect ema_has_an_effect 0 ' s, 16 steps' "${run[@]}" --max-steps 16 --lr-schedule cosine --warmup 3 --clip-norm 0.5 --metrics "$work/no_ema.straight"
differs cosine no_ema

expect rates_of_plain 0 '^0.001 0.001$' bash -c 'first_and_last "$1"' _ "$work/plain.straight"
expect rates_of_cosine 0 '^0.000333[0-9]* [0-9.e-]*e-05$' bash -c 'first_and_last "$1"' _ "$work/cosine.straight"
expect rates_of_one_cycle 0 '^0.002[0-9]* [0-9.e-]*e-0[678]$' bash -c 'first_and_last "$1"' _ "$work/one_cycle.straight"
expect rates_of_step 0 '^0.001 (1e-06|0.0000010*|9.99[0-9]*e-07|1.000[0-9]*e-06)$' bash -c 'first_and_last "$1"' _ "$work/step.straight"
expect rates_of_plateau 0 '^1e-06 .*e-08$' bash -c 'first_and_last "$1"' _ "$work/plateau.straight"

# Resumed with another number of ranks, another hook, another schedule.
expect one_rank_goes_on 0 'resumed at step 16' "$train_image" "${data[@]}" --epochs 40 --lr-schedule-steps 16 --max-steps 20 --hook topk \
  --topk-density 0.05 --checkpoint-dir "$work/topk.run" --resume
expect another_hook 2 'top_k \(0.01\) here, top_k \(0.05\) in the saved state' "${run[@]}" --hook topk --max-steps 30 \
  --checkpoint-dir "$work/topk.run" --resume
expect another_schedule 2 'schedule: none here, one in the checkpoint' "${run[@]}" --max-steps 20 --clip-norm 0.5 --ema 0.9 \
  --checkpoint-dir "$work/cosine.run" --resume

# float16 needs operators that LibTorch has since version 2.4.
if "$train_image" "${data[@]}" --max-steps 1 2>&1 | grep -qE 'LibTorch (1\.|2\.[0-3]\.)'; then
  expect float16_is_refused 2 'use bfloat16, or LibTorch 2.4' "${run[@]}" --max-steps 4 --precision autocast-fp16
else
  goes_on float16 --precision autocast-fp16 --clip-norm 1
fi

expect warmup_of_nothing 2 '--warmup: --lr-schedule step has none; use cosine or one-cycle' "$train_image" --lr-schedule step --warmup 3
expect two_ways_to_clip 2 '--clip-norm and --clip-value: choose one' "$train_image" --clip-norm 1 --clip-value 1
expect compressed_16_bits 2 '--hook topk: takes float32 gradients' "$train_image" --hook topk --precision bf16
expect too_long_a_warmup 2 '--warmup 16: the schedule has 16 steps' "${run[@]}" --lr-schedule cosine --warmup 16
exit "$((failures > 0))"
