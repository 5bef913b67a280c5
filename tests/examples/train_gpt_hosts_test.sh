#!/usr/bin/env bash
# train_gpt_hosts_test.sh PACELINE TRAIN_GPT: two hosts (network namespaces) with two ranks each divide the parameters; the training is the same.
set -uo pipefail
# shellcheck source=tests/examples/expectations.sh
source "$(dirname "$0")/expectations.sh"
[ "$(id -u)" = 0 ] || { echo "skipped: to make hosts needs root"; exit 77; }
paceline=$1 train_gpt=$2

seq 4000 >"$work/text"
head -c 32 /dev/urandom | base64 >"$work/secret"
chmod 600 "$work/secret"
gpt=("$train_gpt" --text "$work/text" --layers 2 --width 32 --heads 4 --context 32 --seed 5 --global-batch-size 12 --clip-norm 0.5
  --prompt '1 2 ' --sample 8)

# on_hosts COMMAND...: runs `paceline run --nnodes 2 ... COMMAND` on each of two hosts, and prints the output of the first one.
on_hosts() {
  PYTHONPATH=$(dirname "$0")/../../benchmarks PACELINE_SECRET_FILE=$work/secret /usr/bin/python3 - "$paceline" "$@" <<'PY'
import subprocess, sys
from hosts import Hosts
with Hosts() as network:
    agents = [subprocess.Popen(
        [*network.enter(number), sys.argv[1], "run", "--nnodes", "2", "--node-rank", str(number), "--master-addr", network.address(0),
         "--nproc-per-node", "2", "--threads-per-rank", "1", *sys.argv[2:]],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for number in (0, 1)]
    outputs = [agent.communicate(timeout=180)[0] for agent in agents]
print(outputs[0])
sys.exit(agents[0].returncode)
PY
}
export -f on_hosts
export paceline work
expect whole 0 'test perplexity' "$paceline" run --nproc-per-node 4 --threads-per-rank 1 "${gpt[@]}" --max-steps 12 --weights "$work/whole"
divided=("${gpt[@]}" --shard 3 --shard-across-hosts)
expect half 0 '^1 2 ' bash -c 'on_hosts "$@"' "$0" "${divided[@]}" --max-steps 6 --checkpoint-dir "$work/run"
expect resumed 0 'resumed at step 6' bash -c 'on_hosts "$@"' "$0" "${divided[@]}" --max-steps 12 --checkpoint-dir "$work/run" --resume \
  --weights "$work/resumed"
expect bits_of_resumed 0 '' cmp "$work/whole" "$work/resumed"
expect without_stage_3 2 'shard-across-hosts: needs --shard 3' "${gpt[@]}" --shard-across-hosts --shard 2
exit "$((failures > 0))"
