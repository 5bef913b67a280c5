#!/usr/bin/env bash
# recipes_test.sh PACELINE FOLDER PYTHON PYTHON_PROGRAM: runs the programs of docs/recipes.md, in FOLDER, with two ranks and alone.
set -euo pipefail
paceline=$1 folder=$2 python=$3 python_program=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_NUM_THREADS=1

two() {  # RANKS PROGRAM [ARGUMENT ...]
  "$paceline" run --nproc-per-node "$1" --bind none "$folder/$2" "${@:3}"
}
expect() {  # NAME PATTERN TEXT
  grep -qE -e "$2" <<<"$3" || { echo "FAILED $1: wanted /$2/ in:"; echo "$3"; exit 1; }
}

whole=$(two 2 checkpoint_loop whole | tail -n 1)
expect checkpoint_loop '^step 1000: best loss 0\.[0-9]+, sum of the weights' "$whole"
output=$("$paceline" run --nproc-per-node 2 --bind none --max-restarts 2 --chaos kill:rank=1@step400 "$folder/checkpoint_loop" killed 2>killed.log)
expect it_continues '^continues after step (150|300|450|600|750|900)$' "$output"
[ "$(tail -n 1 <<<"$output")" = "$whole" ] || { echo "FAILED: a killed run ends with: $(tail -n 1 <<<"$output"), a whole one with: $whole"; exit 1; }
expect another_number_of_ranks '^step 1000: ' "$(two 1 checkpoint_loop killed)"
RANK=0 WORLD_SIZE=1 expect inference 'is inside the circle' "$("$folder/inference" whole | grep '0.00,  0.00')"
expect outside 'is outside the circle' "$("$folder/inference" whole | grep '0.90,  0.90')"

best=$(two 2 early_stop best)
expect early_stop '^stopped after epoch [1-9][0-9]?: best loss 0\.[0-9]+$' "$best"
expect best_weights 'is inside the circle' "$("$folder/inference" best/best.safetensors | grep '0.00,  0.00')"
[ "$(two 1 early_stop best)" = "$best" ] || { echo "FAILED: early_stop went on after its end"; exit 1; }
output=$(two 2 training_run managed --epochs 2)
expect training_run '^ *next +the same with --resume --epochs 3$' "$output"
output=$(two 1 training_run managed --resume --epochs 300)
expect it_resumes '^  resumed at step 64$' "$output"
expect it_stops_early '^the program ends the run after epoch [1-9][0-9]?$' "$output"
expect nothing_is_next '^ *next +nothing: the program ended the run \(--resume adds an epoch\)$' "$output"
[ -s managed/best.safetensors ] && grep -q mean_absolute_error managed/metrics.jsonl || { echo "FAILED training_run: no best weights or no metrics"; exit 1; }
for ranks in 1 2 3; do
  expect "own_pipeline on $ranks" '^loss 0\.0[0-9]+$' "$(two "$ranks" own_pipeline)"
done
[ "$(two 1 own_pipeline)" = "$(two 3 own_pipeline)" ] || { echo "FAILED: own_pipeline differs between 1 and 3 ranks"; exit 1; }
expect own_data '^precision (0\.9[0-9]+|1\.000), recall (0\.9[0-9]+|1\.000) of [0-9]+ positive samples$' "$(two 2 own_data)"
expect accumulation '^mean error per step 0\.[0-9]+$' "$(two 2 accumulation)"
[ "$(two 2 accumulation)" = "$(two 3 accumulation)" ] || { echo "FAILED: accumulation differs between 2 and 3 ranks"; exit 1; }
expect mixed_precision '^loss 0\.[0-2][0-9]+, weights are float32$' "$(two 2 mixed_precision)"
expect lr_finder '^learning rate [0-9]\.[0-9]+$' "$(two 2 lr_finder)"
expect gan '^mean (2\.[5-9]|3\.[0-4])[0-9], standard deviation 0\.[2-9]' "$(two 2 gan)"

for weights in whole best/best.safetensors; do
  expect "fine_tuning from $weights" '^accuracy 0\.[0-6][0-9] before, (0\.9[0-9]|1\.00) after$' "$(two 2 fine_tuning "$weights")"
done
expect plain_calls '^pi 3\.1416, largest 2, sum of squares 5, from rank 2, done$' "$(two 3 plain_calls)"
expect plain_calls_alone '^pi 3\.1416, largest 0, sum of squares 0, from rank 0, done$' "$(RANK=0 WORLD_SIZE=1 "$folder/plain_calls")"

zero=$(two 2 from_deepspeed zero)
expect from_deepspeed '^step 40: loss 0\.[0-9]+$' "$zero"
[ "$(two 3 from_deepspeed zero)" = "$zero" ] || { echo "FAILED: from_deepspeed went on after its end"; exit 1; }

cpp=$(two 2 from_python)
expect from_python '^loss 0\.[0-9]+$' "$cpp"
# Debian 13's torch is built without libuv, which its stores use by default.
same=$(USE_LIBUV=0 "$paceline" run --nproc-per-node 2 --bind none "$python" "$python_program" 2>python.log) || { tail python.log; exit 1; }
awk -v a="${cpp#loss }" -v b="${same#loss }" 'BEGIN {exit !(a - b < 1e-5 && b - a < 1e-5)}' ||
  { echo "FAILED: the loss is ${cpp#loss } in C++ and ${same#loss } in Python"; exit 1; }
echo "recipes: all programs ran; both languages end with a loss of ${cpp#loss }"
