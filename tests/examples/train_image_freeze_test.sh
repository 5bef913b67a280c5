#!/usr/bin/env bash
# train_image_freeze_test.sh PACELINE TRAIN_IMAGE: the node of rank 0, which writes the checkpoints, freezes. The other node continues at once, and
# when the first one thaws it changes nothing in the folder.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"
data+=(--model net)  # a quarter of the time of the cnn

(umask 077 && echo 0123456789abcdef0123456789abcdef >"$work/secret")
export PACELINE_SECRET_FILE=$work/secret
port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# node IS_HOST: starts one node of the job in the background.
node() {
  "$paceline" run --nproc-per-node 1 --nnodes 1:2 --rdzv-endpoint "127.0.0.1:$port" --rdzv-id frozen --shutdown-timeout 20 \
    --rdzv-conf "keep_alive_interval=0.2,keep_alive_max_attempt=5,join_timeout=8,is_host=$1" \
    "$train_image" "${data[@]}" --epochs 100000 --checkpoint-dir "$work/run" --checkpoint-every 2 --metrics "$work/steps.jsonl" >"$work/node.$1" 2>&1 &
}
steps() { grep -c '"event":"step"' "$work/steps.jsonl" 2>/dev/null; }
# wait_until SECONDS COMMAND...: repeats the command until it succeeds.
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.05
  done
}
steps_above() { [ "$(steps)" -gt "$1" ]; }
tree() {
  local child
  echo "$1"
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do tree "$child"; done
}
# check NAME COMMAND...: the command must succeed.
check() {
  local name=$1
  shift
  if "$@"; then
    echo "ok $name"
  else
    echo "FAILED $name:"
    tail -n 15 "$work"/node.*
    failures=$((failures + 1))
  fi
}
content() { (cd "$work/run" && find . -type f -exec sha256sum {} + | sort -k 2); }

node true
first=$!
node false
second=$!
check both_train wait_until 60 steps_above 20
mapfile -t frozen < <(tree "$first")
kill -STOP "${frozen[@]}"
check the_other_node_goes_on wait_until 60 grep -q 'resumed at step' "$work/node.false"
check it_trains wait_until 60 steps_above $(($(steps) + 10))
kill -TERM "$second"
wait "$second"
expect it_saves 85 'stopped after step [0-9]+ by SIGTERM; to continue' bash -c 'cat "$1"; exit "$2"' _ "$work/node.false" $?
content >"$work/before"
kill -CONT "${frozen[@]}"
wait "$first"
expect the_thawed_node_ends 3 'the job is not restarted here' bash -c 'cat "$1"; exit "$2"' _ "$work/node.true" $?
content >"$work/after"
expect nothing_has_changed 0 '' cmp "$work/before" "$work/after"
expect there_are_checkpoints 0 'step-[0-9]*/manifest.json' cat "$work/after"
exit "$((failures > 0))"
