#!/usr/bin/env bash
# slurm_test.sh PACELINE RANK (inside with_slurm): tests paceline under a real SLURM with two nodes. RANK is a program that forms a group.
set -uo pipefail
paceline=$1 rank=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
PATH=$(dirname "$paceline"):$PATH
failures=0

# expect NAME WANTED_EXIT PATTERN COMMAND...: checks the command's exit code, and that its output matches the pattern.
expect() {
  local name=$1 wanted=$2 pattern=$3 output code=0
  shift 3
  output=$(timeout 60 "$@" 2>&1) || code=$?
  if [ "$code" = "$wanted" ] && grep -qzE -e "$pattern" <<<"$output"; then
    echo "ok $name"
  else
    echo "FAILED $name: exit $code (wanted $wanted), wanted /$pattern/ in:"
    tail -n 25 <<<"$output"
    failures=$((failures + 1))
  fi
}

# state JOB: prints the state that SLURM reports. wait_for JOB STATES: waits until the job is in one of these states.
state() { scontrol show job "$1" 2>/dev/null | grep -o 'JobState=[A-Z_]*' | head -n 1 | cut -d= -f2; }
wait_for() {
  local job=$1 states=$2 _
  for _ in $(seq 300); do
    grep -qwE "$(state "$job")" <<<"$states" && return 0
    sleep 0.2
  done
  echo "job $job is $(state "$job"), not one of: $states"
  return 1
}
number() { grep -oE '[0-9]+$'; }

# srun starts the program itself.
(umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >secret)
export PACELINE_LOG_LEVEL=info  # each rank logs its number and the world size
expect binary_under_srun 0 'rank 0 of 4, ' env PACELINE_SECRET_FILE="$work/secret" srun -N2 -n4 "$rank" ends
expect two_steps_of_a_job_at_once 0 'rank 0 of 2, .*rank 0 of 2, ' salloc -Q -N2 -n4 sh -c "
  export PACELINE_SECRET_FILE=$work/secret
  srun --exact -N2 -n2 $rank ends >first 2>&1 & srun --exact -N2 -n2 $rank ends >second 2>&1
  wait && cat first second"
expect binary_at_an_address 0 'rank 0 of 4, ' env PACELINE_SECRET_FILE="$work/secret" MASTER_ADDR=10.98.0.1 \
  MASTER_PORT=29871 srun -N2 -n4 "$rank" ends
expect a_secret_is_missing 5 'needs a secret that all its hosts share' srun -Q -N2 -n2 "$rank" ends
# On one host the program needs no variables, whatever name SLURM gives the job ("interactive", "bash").
expect binary_under_salloc_and_srun 0 'rank 0 of 2, ' salloc -Q -N1 -n2 srun "$rank" ends
expect binary_in_a_shell_under_srun 0 'rank 0 of 2, ' srun -N1 -n2 bash -c "$rank ends"
expect a_step_is_forgotten 5 'SLURM_NTASKS=2 but .*Prepend srun' salloc -Q -N1 -n2 "$rank" ends
unset PACELINE_LOG_LEVEL

# In an allocation, paceline run starts ranks on its nodes.
# shellcheck disable=SC2016
expect run_in_an_allocation 0 '\[n1:0\] 0/4 .*\[n2:3\] 3/4 |\[n2:3\] 3/4 .*\[n1:0\] 0/4 ' \
  salloc -Q -N2 --ntasks-per-node=2 paceline run --all-ranks sh -c 'echo $RANK/$WORLD_SIZE $SLURM_JOB_ID'
expect group_in_an_allocation 0 'waiting' salloc -Q -N2 --ntasks-per-node=2 paceline run "$rank" ends
# shellcheck disable=SC2016
expect exit_code_of_the_failing_rank 7 'rank 2 failed first: exit code 7' \
  salloc -Q -N2 --ntasks-per-node=2 paceline run sh -c '[ $RANK = 2 ] && exit 7; sleep 60'
# Restarts within the allocation: the agents, each started by its own srun, meet again.
# shellcheck disable=SC2016
expect restart_in_an_allocation 0 'generation 1: restart 1 of at most 3, after rank 2 on host n2: exit code 7.*again 2/4' \
  salloc -Q -N2 --ntasks-per-node=2 paceline run --max-restarts 3 --all-ranks sh -c '
    [ $TORCHELASTIC_RESTART_COUNT = 1 ] && { sleep 1; echo again $RANK/$WORLD_SIZE; exit 0; }
    [ $RANK = 2 ] && { sleep 1; exit 7; }
    exec sleep 60'
# SLURM forwards stdout and stderr in any order.
# shellcheck disable=SC2016
expect group_after_a_restart_in_an_allocation 0 'generation 1: restart 1 .*formed again|formed again.*generation 1: restart 1 ' \
  salloc -Q -N2 --ntasks-per-node=2 paceline run --max-restarts 1 sh -c '
    [ $TORCHELASTIC_RESTART_COUNT = 1 ] && { "$0" ends && echo "formed again"; exit; }
    exec "$0" dies' "$rank"
# shellcheck disable=SC2016
expect a_node_less_in_an_allocation 0 'going on with 1 of 2 hosts.*alone 0/1|alone 0/1.*going on with 1 of 2 hosts' \
  salloc -Q -N2 --ntasks-per-node=1 paceline run --nnodes 1:2 --host-retries 0 --all-ranks sh -c '
    [ $WORLD_SIZE = 1 ] && { echo alone $RANK/$WORLD_SIZE; sleep 3; exit 0; }
    [ $RANK = 1 ] && { sleep 1; kill -9 $PPID; }
    exec sleep 60'
# A node whose agent was killed is started again through srun, and joins the job.
# shellcheck disable=SC2016
expect a_node_that_comes_back_in_an_allocation 0 'host n2 is back.*back 1/2|back 1/2.*host n2 is back' \
  salloc -Q -N2 --ntasks-per-node=1 paceline run --nnodes 1:2 --all-ranks sh -c '
    [ $WORLD_SIZE = 2 ] && [ $TORCHELASTIC_RESTART_COUNT -gt 0 ] && { echo back $RANK/$WORLD_SIZE; exit 0; }
    [ $RANK = 1 ] && { sleep 1; kill -9 $PPID; }
    exec sleep 60'
# One task with many cpus: paceline starts the number of ranks that is asked for, in salloc, under srun and in a job of two nodes.
# shellcheck disable=SC2016
expect one_task_with_many_cpus 0 '0/2.*1/2|1/2.*0/2' \
  salloc -Q -N1 -n1 -c2 paceline run --nproc-per-node 2 --all-ranks sh -c 'echo $RANK/$WORLD_SIZE'
# shellcheck disable=SC2016
expect one_task_of_srun_with_many_cpus 0 '0/2.*1/2|1/2.*0/2' \
  srun -Q -N1 -n1 -c2 paceline run --nproc-per-node 2 --all-ranks sh -c 'echo $RANK/$WORLD_SIZE'
# shellcheck disable=SC2016
expect one_task_in_a_job_of_two_nodes 0 '\[0\] 0/2.*\[1\] 1/2|\[1\] 1/2.*\[0\] 0/2' \
  salloc -Q -N2 -n3 srun -N1 -n1 paceline run --nproc-per-node 2 --all-ranks sh -c 'echo $RANK/$WORLD_SIZE'
# The shell that salloc starts if LaunchParameters=use_interactive_step is set, here with the default InteractiveStepOptions.
# shellcheck disable=SC2016
expect slurms_interactive_step 0 '\[n1:0\] 0/4 .*\[n2:3\] 3/4 |\[n2:3\] 3/4 .*\[n1:0\] 0/4 ' \
  salloc -Q -N2 --ntasks-per-node=2 srun --interactive --preserve-env paceline run --all-ranks sh -c 'echo $RANK/$WORLD_SIZE .'
expect a_step_is_forgotten_in_slurms_interactive_step 5 'SLURM_NTASKS=4 but .*Prepend srun' \
  salloc -Q -N2 --ntasks-per-node=2 srun -Q --interactive --preserve-env "$rank" ends
expect components_are_refused 2 'this SLURM job has 2 components' salloc -Q -N1 -n1 : -N1 -n2 paceline run true
PACELINE_LOG_LEVEL=info expect components_under_srun 0 'rank 0 of 3, ' env PACELINE_SECRET_FILE="$work/secret" \
  salloc -Q -N1 -n1 : -N1 -n2 srun --het-group=0,1 "$rank" ends
# Variables that stand for options of srun: labels would break the frames of the connection, and the agent would get only one core.
# shellcheck disable=SC2016
expect options_of_srun_in_variables 0 '0: cpus 0,1|0: cpus 0-1' env SLURM_LABELIO=1 SLURM_EXACT=1 SRUN_CPUS_PER_TASK=1 \
  salloc -Q -N1 -n2 paceline run --nproc-per-node 1 --bind none sh -c 'echo "$RANK: cpus $(taskset -cp $$ | sed "s/.*: //")"'
expect copies_are_refused 2 'srun has started 2 copies of this launcher' srun -Q -K0 -N2 -n2 --wait=0 paceline run true

# paceline submit starts a job on both nodes.
job=$(paceline submit slurm --nnodes 2 --nproc-per-node 2 --output out-%j "$rank" ends | number)
wait_for "$job" COMPLETED && expect submitted_job 0 waiting cat "out-$job" || failures=$((failures + 1))

# A submitted job that restarts twice; its output file contains the output of rank 0.
# shellcheck disable=SC2016
job=$(paceline submit slurm --nnodes 2 --nproc-per-node 1 --max-restarts 2 --output restarts-%j sh -c '
  [ $TORCHELASTIC_RESTART_COUNT = 2 ] && { echo "third time $RANK"; exit 0; }
  [ $RANK = 1 ] && exit $((3 + TORCHELASTIC_RESTART_COUNT))
  exec sleep 60' | number)
wait_for "$job" COMPLETED && expect submitted_job_with_restarts 0 'third time 0' cat "restarts-$job" || failures=$((failures + 1))

# A job array: its jobs run at the same time on the same nodes and must not meet.
# shellcheck disable=SC2016
job=$(paceline submit slurm --array 0-3 --nproc-per-node 1 --output array-%a sh -c '"$0" ends; echo ended $?' "$rank" | number)
for task in 0 1 2 3; do
  for _ in $(seq 300); do grep -q ended "array-$task" 2>/dev/null && break; sleep 0.2; done
  expect "array_task_$task" 0 'ended 0' cat "array-$task"
done

# scancel leaves nothing behind.
job=$(paceline submit slurm --nnodes 2 --nproc-per-node 2 --output cancelled sh -c "echo ready; exec sleep 4321" | number)
for _ in $(seq 150); do [ "$(pgrep -fxc 'sleep 4321')" = 4 ] && break; sleep 0.2; done
expect ranks_run_on_both_nodes 0 '^4' pgrep -fxc 'sleep 4321'
scancel "$job"
for _ in $(seq 150); do pgrep -fx 'sleep 4321' >/dev/null || break; sleep 0.2; done
expect nothing_is_left_after_scancel 1 '^0' pgrep -fxc 'sleep 4321'
wait_for "$job" CANCELLED || failures=$((failures + 1))

# The signal before the time limit: ranks that stop as agreed are queued again and continue.
# shellcheck disable=SC2016
job=$(paceline submit slurm --nproc-per-node 1 --output again --shutdown-timeout 5 sh -c '
  [ -e stopped ] && { echo "went on after $SLURM_RESTART_COUNT"; exit 0; }
  trap "touch stopped; exit 85" USR1; echo ready; while :; do sleep 0.1; done' | number)
for _ in $(seq 150); do grep -q ready again 2>/dev/null && break; sleep 0.2; done
scancel --batch --signal=USR1 "$job"
for _ in $(seq 300); do [ -e stopped ] && break; sleep 0.2; done
scontrol update JobId="$job" StartTime=now 2>/dev/null
for _ in $(seq 900); do grep -q 'went on' again && break; sleep 0.2; done
expect a_job_that_stopped_as_agreed_goes_on 0 'went on after 1' cat again

# The signal that SLURM sends before the real time limit of a job, at most 30 s too early. Both runs together must neither lose a sample nor see one
# twice. A job that was queued again does not start until its start time, so the loop moves that time to now.
job=$(paceline submit slurm --time 2 --signal-before 60 --nnodes 2 --nproc-per-node 2 --output samples "$rank" samples | number)
is='' states=''
for _ in $(seq 500); do
  was=$is is=$(state "$job")
  [ "$is" = "$was" ] || states+="$(date +%T) ${is:-unknown}"$'\n'
  [[ "$is" =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)$ ]] && break
  [ "$is" = PENDING ] && scontrol update JobId="$job" StartTime=now 2>/dev/null
  sleep 1
done
expect the_job_that_was_queued_again_ends 0 '^COMPLETED' sh -c "echo '$is'; echo '$states'; grep 'JobId=$job ' $SLURM_STATE/controller.log"
expect a_job_whose_time_ends_stops_as_agreed 0 'all ranks stopped as agreed.*queued again' cat samples
expect it_went_on_where_it_stopped 0 'goes on at step [1-9]' cat samples
expect no_sample_is_lost_or_seen_twice 0 '^the same' sh -c \
  'seq 0 3599 >wanted; cat seen-* | sort -n >seen; cmp wanted seen && echo the same'

# A node dies with everything that runs on it; the job must end with a message that names it. The log file of a step's daemon shows its node.
tree() { local child; echo "$1"; for child in $(pgrep -P "$1"); do tree "$child"; done; }
job=$(paceline submit slurm --no-requeue --nnodes 2 --nproc-per-node 1 --output died sh -c "echo ready; exec sleep 4322" | number)
for _ in $(seq 150); do [ "$(pgrep -fxc 'sleep 4322')" = 2 ] && break; sleep 0.2; done
for step in $(pgrep -f 'slurmstepd: '); do
  # shellcheck disable=SC2046
  [ -n "$(find "/proc/$step/fd" -lname '*/n2.log')" ] && kill -9 $(tree "$step")
done
kill -9 "$(cat "$SLURM_STATE/n2.pid")"
for _ in $(seq 300); do pgrep -fx 'sleep 4322' >/dev/null || break; sleep 0.2; done
wait_for "$job" "NODE_FAIL FAILED" || failures=$((failures + 1))
# Either SLURM, which ends the job, or the launcher notices the death first.
expect the_node_that_died_is_named 0 'host n2 was lost: |host n2 has sent nothing for [0-9]+ s' cat died
expect nothing_is_left_after_a_node_died 1 '^0' pgrep -fxc 'sleep 4322'

exit "$((failures > 0))"
