#!/usr/bin/env bash
# train_image_shards_test.sh PACELINE TRAIN_IMAGE: a training in logical shards ends with the same weights and optimizer state for any number of
# ranks: constant, different after each resume, or smaller after the loss of a host.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"
data+=(--model net)  # a quarter of the time of the cnn

steps=30
job=("$train_image" "${data[@]}" --batch-size 4 --epochs 40 --checkpoint-every 5)
run=("$paceline" run --logical-shards 8 --nproc-per-node)

# Prints a digest of the tensors in the newest checkpoint, except the random states, which each rank has for itself.
digest() {
  local newest
  newest=$(find "$1" -maxdepth 1 -name 'step-*' | sort | tail -n 1)
  "$paceline" checkpoint export "$newest" "$1/newest.safetensors" >/dev/null
  /usr/bin/python3 - "$newest" "$1/newest.safetensors" <<'PY'
import hashlib, json, struct, sys
with open(sys.argv[2], "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    body = f.read()
tensors = {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()
           if name not in ("__metadata__", "random_states")}
total = hashlib.sha256(b"".join(name.encode() + tensors[name] for name in sorted(tensors))).hexdigest()
print(sys.argv[1].split("/")[-1], len(tensors), total)
PY
}

export -f digest
export paceline
for ranks in 1 2 4; do
  expect "on_$ranks" 0 " s, $steps steps" "${run[@]}" $ranks "${job[@]}" --max-steps $steps --checkpoint-dir "$work/on_$ranks"
done
# The program's option has the same effect as the launcher's, even if a single rank would otherwise use all cores.
for ranks in 1 2; do
  expect "by_option_on_$ranks" 0 " s, $steps steps" "$paceline" run --nproc-per-node $ranks "${job[@]}" --logical-shards 8 \
    --max-steps $steps --checkpoint-dir "$work/by_option_on_$ranks"
done
expect on_4_first 0 ' s, 10 steps' "${run[@]}" 4 "${job[@]}" --max-steps 10 --checkpoint-dir "$work/changing"
expect then_on_1 0 'resumed at step 10' "${run[@]}" 1 "${job[@]}" --max-steps 20 --checkpoint-dir "$work/changing" --resume
expect then_on_2 0 'resumed at step 20' "${run[@]}" 2 "${job[@]}" --max-steps $steps --checkpoint-dir "$work/changing" --resume
expect another_number_of_shards 2 'has 8 logical shards, this job has 4' \
  "$paceline" run --logical-shards 4 --nproc-per-node 2 "${job[@]}" --max-steps 60 --checkpoint-dir "$work/changing" --resume

# Two agents with two ranks each. The second agent is killed once there is a checkpoint.
PACELINE_SECRET_FILE=$work/secret
export PACELINE_SECRET_FILE
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$PACELINE_SECRET_FILE")
port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
agent=("$paceline" run --nnodes 1:2 --rdzv-endpoint "127.0.0.1:$port" --rdzv-id shards --nproc-per-node 2 --logical-shards 8
  --max-restarts 3 "${job[@]}" --max-steps $steps --checkpoint-dir "$work/elastic")
"${agent[@]}" >"$work/agent_0" 2>&1 &
first=$!
"${agent[@]}" >"$work/agent_1" 2>&1 &
second=$!
for _ in $(seq 600); do
  compgen -G "$work/elastic/step-*" >/dev/null && break
  sleep 0.05
done
kill -9 $second
wait $first
expect a_host_was_lost 0 'generations +2' cat "$work/agent_0"

# shellcheck disable=SC2016
expect the_same_bits 0 '^the same$' bash -c '
  for job in on_2 on_4 by_option_on_1 by_option_on_2 changing elastic; do
    [ "$(digest "$1/$job")" = "$(digest "$1/on_1")" ] || { echo "$job differs:"; digest "$1/$job"; digest "$1/on_1"; exit; }
  done
  digest "$1/on_1" | grep -q "step-000000'$steps' " && echo "the same"' _ "$work"
exit "$((failures > 0))"
