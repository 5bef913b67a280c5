#!/usr/bin/env bash
# train_gpt_test.sh PACELINE TRAIN_GPT: the training is the same for every division among ranks, resumed or not; bad input is refused.
set -uo pipefail
# shellcheck source=tests/examples/expectations.sh
source "$(dirname "$0")/expectations.sh"
run2=("$1" run --nproc-per-node 2)
run4=("$1" run --nproc-per-node 4)
run8=("$1" run --nproc-per-node 8 --threads-per-rank 1)
train_gpt=$2

# A text to learn from, a short text, and a tokenizer like GPT-2's with two merges.
/usr/bin/python3 - "$work" <<'PY'
import json, os, random, sys
work = sys.argv[1]
random.seed(1)
words = "the rank sends a gradient and another rank adds it to the sum of the bucket".split()
with open(work + "/text", "w") as f:
    f.write(" ".join(random.choice(words) for _ in range(4000)))
with open(work + "/short", "w") as f:
    f.write("forty bytes are too short for a context.")
shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
hidden = [byte for byte in range(256) if byte not in shown]
letters = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(hidden))]
vocabulary = json.dumps({name: number for number, name in enumerate(letters + ["th", "the"])})
for name, content, merges in (("bpe", vocabulary, "#version: 0.2\nt h\nth e\n"), ("cut", vocabulary[:900], "#version: 0.2\nt h\n"),
                              ("other", vocabulary, "#version: 0.2\nt h\nqu een\n")):
    os.mkdir(f"{work}/{name}")
    with open(f"{work}/{name}/vocab.json", "w") as f:
        f.write(content)
    with open(f"{work}/{name}/merges.txt", "w") as f:
        f.write(merges)
PY
gpt=("$train_gpt" --text "$work/text" --layers 2 --width 32 --heads 4 --context 32 --seed 5)
steps=(--global-batch-size 8 --max-steps 20 --sample 0)

# The report of a run, and its sample. All ranks see the same text, so the mesh may change only the rounding of the loss.
expect alone 0 'throughput +[0-9]+ tokens/s' "${gpt[@]}" "${steps[@]}" --metrics "$work/alone.jsonl" --weights "$work/alone"
expect tokens_per_second 0 '"tokens_per_second":' cat "$work/alone.jsonl"
test_loss() { sed -n 's/.*"event":"end".*"test_loss":\([0-9.]*\).*/\1/p' "$1"; }
same_loss() {
  local this that
  this=$(test_loss "$1/alone.jsonl") that=$(test_loss "$1/$2.jsonl")
  echo "alone $this, $2 $that"
  awk -v a="$this" -v b="$that" 'BEGIN { exit !(a > 0 && b > 0 && a - b < 1e-3 && b - a < 1e-3) }'
}
export -f test_loss same_loss
expect dp 0 'mesh pp=1,dp=2,tp=1, shard 0' "${run2[@]}" "${gpt[@]}" "${steps[@]}" --metrics "$work/dp.jsonl"
expect tp 0 'mesh pp=1,dp=1,tp=2, shard 0' "${run2[@]}" "${gpt[@]}" "${steps[@]}" --mesh tp=2 --metrics "$work/tp.jsonl" --weights "$work/tp"
expect both 0 'memory of a host +[0-9]+ MB planned, [0-9]+ MB at the peak' "${run4[@]}" "${gpt[@]}" "${steps[@]}" --mesh dp=2,tp=2 --shard 3 --metrics "$work/both.jsonl"
expect pp 0 'pipeline: stages of 1\+1 layers; zero-bubble, 4 micro-batches: .* planned' "${run2[@]}" "${gpt[@]}" "${steps[@]}" \
  --mesh pp=2 --schedule zero-bubble --metrics "$work/pp.jsonl" --weights "$work/pp" --pipeline-picture "$work/pp.svg"
expect eight 0 'share of matrix speed' "${run8[@]}" "${gpt[@]}" "${steps[@]}" --mesh pp=2,dp=2,tp=2 --micro-batches 2 --shard 2 \
  --metrics "$work/eight.jsonl" --pipeline-picture "$work/eight.json"
# Learners that take outer steps together: a rank each, and two ranks that divide their parameters.
expect learners 0 'outer steps: 4, [0-9.]+ MB sent by this rank, which waited [0-9.]+ s' "${run2[@]}" "${gpt[@]}" "${steps[@]}" --outer 2 --outer-period 5 --outer-wire int8
expect divided_learners 0 'mesh learner=2,pp=1,dp=2,tp=1, shard 3' "${run4[@]}" "${gpt[@]}" "${steps[@]}" --outer 2 --outer-period 4 \
  --outer-fragments 2 --outer-delay 1 --shard 3
expect learners_alone 2 'outer 2: does not divide 1 ranks' "${gpt[@]}" --outer 2
expect long_delay 2 'outer-delay 5: must be below period / fragments' "${gpt[@]}" --outer 2 --outer-period 5 --outer-delay 5
for mesh in dp tp both pp eight; do expect "loss_of_$mesh" 0 alone bash -c 'same_loss "$@"' _ "$work" "$mesh"; done
# After its first step each run had taken about as much memory as planned, for every mesh and stage.
planned() {
  local planned peak
  for run in alone dp tp both pp eight; do
    for of in host rank; do
      planned=$(sed -n "s/.*\"${of}_memory_planned\":\([0-9.e+]*\).*/\1/p" "$1/$run.jsonl")
      peak=$(sed -n "s/.*\"${of}_memory_peak\":\([0-9.e+]*\).*/\1/p" "$1/$run.jsonl")
      echo "$run, a $of: planned $planned, peak $peak"
      awk -v a="$planned" -v b="$peak" 'BEGIN { exit !(a > 0 && b > 0 && a < 1.25 * b && b < 1.25 * a) }' || return 1
    done
  done
}
export -f planned
expect memory_as_planned 0 'eight, a rank' bash -c 'planned "$@"' _ "$work"
expect picture 0 '>measured: ' cat "$work/pp.svg"
expect trace 0 '"name":"1F1"' cat "$work/eight.json"
# The file of a divided model has the whole weights.
for way in tp pp; do
  expect "whole_weights_of_$way" 0 '^28 tensors alike$' /usr/bin/python3 - "$work/alone" "$work/$way" <<'PY'
import json, struct, sys
def shapes(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
this, that = map(shapes, sys.argv[1:])
print(f"{len(this)} tensors {'alike' if this == that else f'differ: {this} {that}'}")
PY
done
# The search must keep within the memory that it is given: here a little more than one micro-batch takes on each rank, then nearly none.
searched=("${run2[@]}" "${gpt[@]}" --layers 4 --global-batch-size 8 --micro-batches 8 --max-steps 2 --sample 0 --mesh pp=2)
kept() { set -o pipefail; "${@:2}" | tee "$1"; }
export -f kept
expect all_in_memory 0 'gpipe, 8 micro-batches: .* activations of [0-9.]+ MiB on a rank' bash -c 'kept "$@"' _ "$work/all_in_memory" \
  "${searched[@]}" --schedule gpipe
memory_of() { sed -n 's/.*activations of \([0-9.]*\) MiB.*/\1/p' "$1"; }
limit=$(awk -v all="$(memory_of "$work/all_in_memory")" 'BEGIN { print all / 8 * 1.1 }')
expect within_memory 0 '8 micro-batches: .* activations of [0-9.]+ MiB on a rank' bash -c 'kept "$@"' _ "$work/within_memory" \
  "${searched[@]}" --schedule search --stage-memory "$limit"
expect kept_to_memory 0 '^yes$' awk -v most="$(memory_of "$work/within_memory")" -v limit="$limit" \
  'BEGIN { print (most > 0 && most <= limit) ? "yes" : most " of " limit }'
expect no_memory 2 'no schedule fits into memory: rank 0 may keep .* one micro-batch on its stages needs' "${searched[@]}" --schedule search \
  --stage-memory 0.001
# The first lines of the output show what the search chose. A layout that the flags ask for is kept.
expect searched_layout 0 'searched: [1-2] stages? a rank; the best named schedule: [a-z0-9-]+ would take [0-9.]+ ms' "${searched[@]}" --schedule search
expect asked_layout 0 'pipeline: stages of 1\+1\+1\+1 layers; .*, 8 micro-batches' "${searched[@]}" --schedule search --stages-per-rank 2
sampled=(--batch-size 8 --max-steps 20 --prompt 'the rank ')
expect sample 0 '^the rank ' "${gpt[@]}" "${sampled[@]}"
expect sample_of_parts 0 '^the rank ' "${run2[@]}" "${gpt[@]}" "${sampled[@]}" --mesh tp=2
expect sample_of_stages 0 '^the rank ' "${run2[@]}" "${gpt[@]}" "${sampled[@]}" --mesh pp=2 --schedule search
expect default_text 0 'on jargon.txt.gz \(1[0-9]{6} training tokens\)' "$train_gpt" --max-steps 1 --layers 1 --width 32 --heads 4 --context 32
own_mounts=(unshare --mount)
[ "$(id -u)" = 0 ] || own_mounts+=(--map-root-user)
expect no_default_text 2 'install Debian.s package jargon-text .*, or name a text with --text' "${own_mounts[@]}" \
  sh -c 'mount -t tmpfs none /usr/share/doc/jargon-text && exec "$@"' _ "$train_gpt" --max-steps 1
expect bpe 0 'test perplexity' "${run2[@]}" "${gpt[@]}" "${sampled[@]}" --mesh tp=2 --tokenizer "$work/bpe"
expect bf16 0 'test perplexity' "${run2[@]}" "${gpt[@]}" --max-steps 3 --precision bf16 --shard 2
expect autocast_of_stages 0 'test perplexity' "${run2[@]}" "${gpt[@]}" --max-steps 3 --precision autocast-bf16 --mesh pp=2
expect one_copy_of_stages 0 'test perplexity' "${run4[@]}" "${gpt[@]}" "${steps[@]}" --mesh pp=2,dp=2 --micro-batches 2 --shard 3 \
  --metrics "$work/one_copy.jsonl"
expect loss_of_one_copy 0 alone bash -c 'same_loss "$@"' _ "$work" one_copy
# Norms are computed over the whole model: with clipping and with LAMB all meshes agree.
mkdir "$work/norms"
whole=(--clip-norm 0.5 --optimizer lamb --lr 0.01)
expect norms_alone 0 'test perplexity' "${gpt[@]}" "${steps[@]}" "${whole[@]}" --metrics "$work/norms/alone.jsonl"
for mesh in tp=2 pp=2; do
  expect "norms_$mesh" 0 'test perplexity' "${run2[@]}" "${gpt[@]}" "${steps[@]}" "${whole[@]}" --mesh "$mesh" \
    --metrics "$work/norms/$mesh.jsonl"
  expect "loss_of_norms_$mesh" 0 alone bash -c 'same_loss "$@"' _ "$work/norms" "$mesh"
done

# Every stage of sharding gives the same bits, with clipping and a learning-rate schedule.
for shard in 0 1 2 3; do
  expect "shard_$shard" 0 "shard $shard" "${run2[@]}" "${gpt[@]}" "${steps[@]}" --clip-norm 0.5 --lr-schedule cosine --warmup 5 --dropout 0.1 \
    --shard "$shard" --weights "$work/shard_$shard"
done
for shard in 1 2 3; do expect "bits_of_shard_$shard" 0 '' cmp "$work/shard_0" "$work/shard_$shard"; done
# An interrupted and resumed training gives the same bits.
dropped=("${run2[@]}" "${gpt[@]}" --batch-size 4 --sample 0 --dropout 0.1)
expect straight 0 'test perplexity' "${dropped[@]}" --max-steps 16 --weights "$work/straight"
for shard in 0 3; do
  resumed=("${dropped[@]}" --shard "$shard")
  expect "half_$shard" 0 'test perplexity' "${resumed[@]}" --max-steps 8 --checkpoint-dir "$work/run_$shard"
  expect "resumed_$shard" 0 'resumed at step 8' "${resumed[@]}" --max-steps 16 --checkpoint-dir "$work/run_$shard" --resume \
    --weights "$work/resumed_$shard"
  expect "bits_resumed_$shard" 0 '' cmp "$work/straight" "$work/resumed_$shard"
done
# So does one whose ranks were killed: it continues from the last complete state, whatever half a step left in the one copy.
for shard in 0 3; do
  expect "killed_$shard" 0 'faults +2 .kill 2' "${run2[@]}" --max-restarts 5 --chaos 'kill:rank=1@step6,kill:rank=0@step4' --chaos-seed 7 \
    --log-dir "$work/logs_$shard" "${gpt[@]}" --batch-size 4 --sample 0 --dropout 0.1 --shard "$shard" --max-steps 16 \
    --memory-checkpoint-every 2 --checkpoint-dir "$work/killed_run_$shard" --weights "$work/killed_$shard"
  expect "bits_killed_$shard" 0 '' cmp "$work/straight" "$work/killed_$shard"
done
# So does a pipeline with a stage that dies.
piped=("${run2[@]}" --max-restarts 2 "${gpt[@]}" --global-batch-size 8 --sample 0 --dropout 0.1 --mesh pp=2 --max-steps 12)
expect straight_pp 0 'test perplexity' "${piped[@]}" --weights "$work/straight_pp"
expect killed_pp 0 'faults +1 .kill 1' env PET_CHAOS='kill:rank=1@step7' "${piped[@]}" --checkpoint-every 3 --checkpoint-dir "$work/killed_pp_run" \
  --weights "$work/killed_pp"
expect bits_killed_pp 0 '' cmp "$work/straight_pp" "$work/killed_pp"
# A resumed run may be divided in another way: after no further step, its last checkpoint has the tensors of the first.
divided=("${gpt[@]}" --global-batch-size 8 --sample 0 --checkpoint-dir "$work/divided")
expect divided_first 0 'test perplexity' "${run2[@]}" "${divided[@]}" --max-steps 6 --mesh tp=2
cp -r "$work/divided" "$work/first"
for how in "2 pp=2 0" "4 dp=2,tp=2 1" "4 pp=2,dp=2 2" "4 dp=4 3" "4 pp=2,tp=2 0"; do
  read -r ranks mesh shard <<< "$how"
  expect "divided_by_$mesh" 0 'resumed at step 6' "$1" run --nproc-per-node "$ranks" --threads-per-rank 1 "${divided[@]}" --max-steps 6 --mesh "$mesh" --shard "$shard" \
    --resume --weights "$work/weights_$mesh"
  expect "weights_by_$mesh" 0 '' cmp "$work/weights_pp=2" "$work/weights_$mesh"
done
expect longer_divided_otherwise 0 'resumed at step 6' "${run2[@]}" "${divided[@]}" --max-steps 9 --mesh dp=2 --shard 3 --resume
expect differs_after_steps 1 'steps 6 and 9: [0-9]+ differences' "$1" checkpoint diff "$work/first" "$work/divided"
# The commands for checkpoints: export and import return the same checkpoint, and Python can read the weights.
expect checkpoint_list 0 ' 6 .* 2 +2 ' "$1" checkpoint ls "$work/first"
expect checkpoint_intact 0 'step 6: intact' "$1" checkpoint verify "$work/first"
expect checkpoint_exported 0 'step 6' "$1" checkpoint export "$work/first" "$work/all.safetensors"
expect checkpoint_imported 0 'step 6' "$1" checkpoint import "$work/all.safetensors" "$work/imported"
expect checkpoint_came_back 0 'steps 6 and 6: the same' "$1" checkpoint diff "$work/first" "$work/imported"
expect checkpoint_merged 0 'in one file' "$1" checkpoint merge "$work/first" "$work/merged"
expect checkpoint_merged_same 0 'the same' "$1" checkpoint diff "$work/first" "$work/merged"
expect checkpoint_weights 0 'step 6' "$1" checkpoint export --weights "$work/first" "$work/exported.safetensors"
# The exported file has the model's own names. The file of --weights has GPT-2's names, and the matrices of its layers are transposed.
expect weights_in_python 0 'the same weights' /usr/bin/python3 - "$work/exported.safetensors" "$work/weights_pp=2" <<'PY'
import json, struct, sys
import numpy
def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    return {name: numpy.frombuffer(body[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}
own, gpt2 = (tensors(path) for path in sys.argv[1:])
def in_own_terms(name, value):
    of_layer = name.startswith("transformer.h.") and value.ndim == 2
    return name.removeprefix("transformer.").replace(".mlp.", "."), value.T if of_layer else value
renamed = dict(in_own_terms(*item) for item in gpt2.items())
same = renamed.keys() == own.keys() and all(numpy.array_equal(own[name][: len(value)], value) for name, value in renamed.items())
print("the same weights" if same else "other weights")
PY
expect checkpoint_pruned 0 'removed 0 checkpoints, kept 1' "$1" checkpoint prune --keep 1 "$work/merged"
printf X | dd of="$work/merged/step-00000006/boxes-00000-of-00001.bin" bs=1 seek=5000 conv=notrunc status=none
expect checkpoint_damaged 1 'step 6: damaged: .*CRC-32C of bytes 4096 to 8192' "$1" checkpoint verify "$work/merged"
mkdir "$work/none"
for action in ls verify show; do
  expect "checkpoint_${action}_of_none" 2 'none: contains no checkpoint' "$1" checkpoint $action "$work/none"
done
expect timeline_of_none 2 'none: contains no timeline of a rank' "$1" timeline "$work/none"
expect checkpoint_action 2 "unknown action 'lss'" "$1" checkpoint lss "$work/first"
# With logical shards, any number of ranks gives the same bits.
for ranks in 1 2; do
  expect "logical_$ranks" 0 'test perplexity' "$1" run --nproc-per-node "$ranks" --threads-per-rank 1 --logical-shards 4 "${gpt[@]}" \
    --batch-size 2 --max-steps 10 --sample 0 --dropout 0.1 --shard 3 --weights "$work/logical_$ranks"
done
expect bits_of_logical_shards 0 '' cmp "$work/logical_1" "$work/logical_2"

# Refused texts, tokenizers and models, and a compressed text.
gzip --keep "$work/text"
head -c 2000 "$work/text.gz" > "$work/cut.gz"
expect packed_text 0 'on text.gz \(1[0-9]{4} training tokens\)' "${gpt[@]}" --text "$work/text.gz" --max-steps 1
expect cut_text 1 'cut.gz: ends at byte [0-9]+: its gzip data is cut' "${gpt[@]}" --text "$work/cut.gz"
expect short_text 2 'short: the text has 40 tokens; with a context of 32, .* need at least 66; use a longer text' "${gpt[@]}" --text "$work/short"
expect no_text 1 'missing: No such file' "${gpt[@]}" --text "$work/missing"
expect no_tokenizer 2 "tokenizer words: neither 'bytes' nor a folder" "${gpt[@]}" --tokenizer words
expect cut_vocabulary 1 'cut/vocab.json: not a JSON object' "${gpt[@]}" --tokenizer "$work/cut"
expect other_merges 1 "other/merges.txt:3: 'qu een' is not a pair of tokens" "${gpt[@]}" --tokenizer "$work/other"
expect heads 2 'heads 5: they do not divide --width 32' "${gpt[@]}" --heads 5
expect heads_among_ranks 2 '1 heads do not divide among 2 ranks' "${run2[@]}" "${gpt[@]}" --heads 1 --mesh tp=2
expect empty_prompt 2 "prompt: the value '' is empty" "${gpt[@]}" --prompt ''
expect long_prompt 2 'prompt: its 35 tokens fill the context of 32' "${gpt[@]}" --prompt 'this prompt fills the whole context'

# Refused meshes, stages, and options that do not work with them.
expect shard_4 2 "shard: '4' is not a whole number from 0 to 3" "${gpt[@]}" --shard 4
expect other_ranks 2 'mesh: pp=1,dp=4,tp=1 is for 4 ranks; group .* has 2' "${run2[@]}" "${gpt[@]}" --mesh dp=4
expect no_mesh 2 'mesh dp: ' "${gpt[@]}" --mesh dp
expect unknown_axis 2 "unknown axis 'ep'; choose dp, tp or pp" "${gpt[@]}" --mesh ep=2
expect few_layers 2 'layers 2: fewer than the 4 stages' "${gpt[@]}" --mesh pp=2 --stages-per-rank 2 --schedule interleaved-1f1b
expect few_micro_batches 2 'micro-batches 1: fewer than the 2 stages' "${gpt[@]}" --mesh pp=2 --micro-batches 1
expect small_batch 2 'micro-batches 8: a replica has 4 sequences in a step' "${gpt[@]}" --mesh pp=2,dp=2 --global-batch-size 8 --micro-batches 8
expect odd_rounds 2 'interleaved-1f1b' "${run2[@]}" "${gpt[@]}" --layers 4 --mesh pp=2 --stages-per-rank 2 --schedule interleaved-1f1b --micro-batches 5
expect unknown_schedule 2 'schedule: .*1f1b' "${gpt[@]}" --mesh pp=2 --schedule fast
expect no_pipeline 2 'need a pipeline; add pp=2' "${gpt[@]}" --micro-batches 4
expect memory_of_a_name 2 'stage-memory: --schedule 1f1b cannot limit memory; use --schedule search' "${gpt[@]}" --mesh pp=2 --stage-memory 4
expect unknown_picture 2 'must end with .svg or .json' "${gpt[@]}" --mesh pp=2 --pipeline-picture step.png
expect hook_of_parts 2 'hook bf16: is not available where --mesh divides the model' "${gpt[@]}" --mesh tp=2 --hook bf16
expect hook_of_units 2 'hook bf16: needs --shard 0 or 1' "${gpt[@]}" --shard 2 --hook bf16
# A rank of the second stage dies while micro-batches are under way: the job ends and names that rank.
expect dead_stage 137 'rank 3 failed first: killed by SIGKILL' "${run4[@]}" --chaos kill:rank=3@step5 "${gpt[@]}" "${steps[@]}" --mesh dp=2,pp=2 --micro-batches 2
expect average_of_one_copy 2 'ema: an average of the weights cannot take the place' "${run2[@]}" "${gpt[@]}" --shard 3 --ema 0.9
expect a_usage_error_is_not_restarted 2 'a usage error .exit code 2. before any progress; restarting does not help' \
  "${run2[@]:0:2}" --max-restarts 5 "${run2[@]:2}" "${gpt[@]}" --shard 3 --ema 0.9

exit "$((failures > 0))"
