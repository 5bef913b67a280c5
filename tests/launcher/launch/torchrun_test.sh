#!/usr/bin/env bash
# torchrun_test.sh RANK: a program that PyTorch's own launcher starts: on one machine, by two agents, and again after a rank was killed. The exit
# status is 77 if Debian's python3-torch is not installed.
set -uo pipefail
rank=$1
export OMP_NUM_THREADS=1 PACELINE_LOG_LEVEL=info
# Debian's torch 1.13 does not start under Python 3.11 with the default values of both options, so the output of a rank that does not exist is
# redirected and shown.
torchrun=(/usr/bin/python3 -m torch.distributed.run --redirects 9:1 --tee 9:1 --no_python --monitor_interval 0.1)
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# torchrun listens on the port of the first agent; any free port will do.
port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
alone=(--standalone)
together=(--rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" --rdzv_id two)
# Debian 13's torch is built without libuv, which torchrun's stores over TCP need, so its agents meet through a file (docs/launching.md).
if ! /usr/bin/python3 -c 'import torch.distributed as d; d.TCPStore("127.0.0.1", 0, 1, True)' 2>"$work/tcp_store"; then
  grep -q "No module named 'torch'" "$work/tcp_store" && { echo "skipped: python3-torch is not installed (scripts/install_packages test)"; exit 77; }
  grep -q 'without libuv' "$work/tcp_store" || { cat "$work/tcp_store"; exit 1; }
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  alone=(--rdzv_backend c10d --rdzv_conf store_type=file)
  together=("${alone[@]}" --rdzv_endpoint "$work/store" --rdzv_id two)
fi

# expect NAME PATTERN COMMAND...: checks that the exit code is 0, and that the output matches the pattern.
expect() {
  local name=$1 pattern=$2 output code=0
  shift 2
  output=$(timeout 80 "$@" 2>&1) || code=$?
  if [ "$code" = 0 ] && grep -qzE -e "$pattern" <<<"$output"; then
    echo "ok $name"
  else
    echo "FAILED $name: exit $code (wanted 0), wanted /$pattern/ in:"
    tail -n 25 <<<"$output"
    failures=$((failures + 1))
  fi
}

expect one_machine 'rank 1 of 2, local rank 1 of 2, launched by torchrun.*waiting' \
  "${torchrun[@]}" "${alone[@]}" --nproc_per_node 2 "$rank" ends
# shellcheck disable=SC2016
expect a_killed_rank 'formed again' \
  "${torchrun[@]}" "${alone[@]}" --max_restarts 1 --nproc_per_node 2 sh -c '
    [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && { "$0" ends && echo "formed again"; exit; }
    exec "$0" dies' "$rank"
# shellcheck disable=SC2016
expect two_agents 'rank 3 of 4, local rank 1 of 2, launched by torchrun' bash -c '
  "$@" & first=$!; "$@" & wait $! && wait $first' _ \
  "${torchrun[@]}" --nnodes 2 "${together[@]}" --nproc_per_node 2 "$rank" ends
exit "$((failures > 0))"
