#!/usr/bin/env bash
# planner_test.sh PACELINE TRAIN_GPT: runs paceline advise with a real program: its plans, and trial runs of them.
set -uo pipefail
# shellcheck source=tests/examples/expectations.sh
source "$(dirname "$0")/expectations.sh"
advise=("$1" advise)
gpt=("$2" --layers 2 --width 32 --heads 2 --context 16 --global-batch-size 8 --sample 0 --epochs 1000)
profile=$work/gpt.json

expect memory_of_each_stage 0 '^stage 3 +0 MB' "${advise[@]}" --memory --ranks 2 --profile "$profile" -- "${gpt[@]}"
for schedule in 1f1b zero-bubble search; do
  expect "every_axis_is_planned_$schedule" 0 "^pp=2,dp=1,tp=1 +DDP +$schedule x" \
    "${advise[@]}" --mesh --ranks 2 --rows 100 --profile "$profile"
done
expect layers_are_divided 0 '^pp=1,dp=1,tp=2 ' "${advise[@]}" --mesh --ranks 2 --rows 100 --profile "$profile"
expect stages_run_as_planned 0 '^pp=2,dp=1,tp=1 .* ms .* ms .*%.*MB' \
  "${advise[@]}" --mesh --ranks 2 --seconds 1 --check pp=2 --profile "$profile" -- "${gpt[@]}"
expect heads_do_not_divide 2 'cannot divide a global batch of 8 samples' \
  "${advise[@]}" --mesh --simulate hosts=1,ranks=64 --profile "$profile"

/usr/bin/python3 - "$profile" <<'PY' || failures=$((failures + 1))
import json, sys
profile = json.load(open(sys.argv[1]))
layers = {layer["name"]: layer for layer in profile["layers"]}
assert list(layers) == ["embedding", "block 0", "block 1", "logits"], list(layers)
assert layers["block 0"]["parameters"] == 12 * 32 * 32 + 13 * 32, layers["block 0"]
assert layers["logits"]["tied_parameters"] == layers["logits"]["parameters"] - 2 * 32, layers["logits"]
assert layers["embedding"]["parameters"] == layers["logits"]["tied_parameters"] + 16 * 32, layers["embedding"]
assert profile["samples_per_step"] == 8 and profile["most_parts"] == 2, profile
for layer in layers.values():
    assert layer["input_half"] and layer["weight_half"] and layer["add_s"] >= 0, layer
assert all(layer["deferred_bytes"] > layer["activation_bytes"] for layer in layers.values() if layer["is_block"]), layers
assert all(layer["activation_bytes"] > 0 for layer in layers.values() if layer["is_block"])
print("ok profile")
PY

expect a_divided_model_has_no_profile 2 'without --mesh and --shard' \
  env PACELINE_PROFILE="$work/none.json" "$1" run --nproc-per-node 2 "${gpt[@]}" --mesh tp=2
[ ! -e "$work/none.json" ] || { echo "FAILED: a profile of a divided model"; failures=$((failures + 1)); }
exit "$failures"
