#!/usr/bin/env bash
# mpi_launch_test.sh MPIEXEC PACELINE CONFORMANCE_RANK: backend mpi under the wrong launcher, and with a rank that is killed.
set -uo pipefail
mpiexec=$1 paceline=$2 rank=$3
# shellcheck source-path=SCRIPTDIR source=mpi_environment.sh
. "${BASH_SOURCE%/*}/mpi_environment.sh"
failures=0

# expect NAME WANTED_EXIT PATTERN COMMAND...: checks the exit code ("fail": any but 0 and that of a time-out) and the output.
expect() {
  local name=$1 wanted=$2 pattern=$3 output code=0
  shift 3
  output=$(timeout 40 "$@" 2>&1) || code=$?
  if { [ "$wanted" = fail ] && [ "$code" != 0 ] && [ "$code" != 124 ] || [ "$code" = "$wanted" ]; } && grep -qE -e "$pattern" <<<"$output"; then
    echo "ok $name"
  else
    echo "FAILED $name: exit $code (wanted $wanted), wanted /$pattern/ in:"
    tail -n 25 <<<"$output"
    failures=$((failures + 1))
  fi
}

expect under_paceline_run 1 "rank [01]: backend mpi needs MPI's own launcher.*mpirun -np 2 PROGRAM" \
  "$paceline" run --nproc-per-node 2 --all-ranks "$rank" mpi 2
expect asked_of_paceline_run 2 'mpi has a launcher of its own' "$paceline" run --backend mpi --nproc-per-node 2 "$rank" mpi 2
# MPI ends the whole job; no rank hangs. `exec`, because ranks of MPICH find each other through their parent process.
# shellcheck disable=SC2016
expect killed_rank fail '' "$mpiexec" -n 3 bash -c '
  if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}" = 1 ]; then (sleep 1; kill -9 $$) & fi
  exec "$@" mpi 3 --gtest_repeat=1000 --gtest_brief=1' _ "$rank"
exit "$((failures > 0))"
