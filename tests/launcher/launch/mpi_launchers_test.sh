#!/usr/bin/env bash
# mpi_launchers_test.sh PACELINE RANK: a program that Open MPI's and MPICH's own launchers start, and paceline run under these launchers. The exit
# status is 77 if neither is installed.
set -uo pipefail
paceline=$1 rank=$2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PACELINE_LOG_LEVEL=info
failures=0 found=0

# expect NAME WANTED_EXIT PATTERN COMMAND...: checks the command's exit code, and that its output matches the pattern.
expect() {
  local name=$1 wanted=$2 pattern=$3 output code=0
  shift 3
  output=$(timeout 40 "$@" 2>&1) || code=$?
  if [ "$code" = "$wanted" ] && grep -qzE -e "$pattern" <<<"$output"; then
    echo "ok $name"
  else
    echo "FAILED $name: exit $code (wanted $wanted), wanted /$pattern/ in:"
    tail -n 25 <<<"$output"
    failures=$((failures + 1))
  fi
}

# launcher NAME COMMAND: tests the launcher COMMAND, for which the program's name is NAME.
launcher() {
  local name=$1 command=$2
  command -v "$command" >/dev/null || return
  found=1
  expect "$command starts a group" 0 'waiting' "$command" -n 3 "$rank" ends
  expect "$command says who is who" 0 "rank 2 of 3, local rank 2 of 3, launched by $name" "$command" -n 3 "$rank" ends
  expect "$command leaves every rank its share of the cores" 0 "rank 1: $share threads" env -u OMP_NUM_THREADS "$command" \
    "${free[@]}" -n 2 "$rank" threads
  expect "$command leaves a number of threads that the user chose" 0 'rank 1: 7 threads' env OMP_NUM_THREADS=7 "$command" \
    "${free[@]}" -n 2 "$rank" threads
  expect "$command with a launcher for each rank" 2 'has started 2 copies of this launcher .*start the program itself' \
    "$command" -n 2 "$paceline" run true
  expect "$command with one launcher" 0 'waiting' "$command" -n 1 "$paceline" run --nproc-per-node 2 "$rank" ends
}

# Each of two ranks that may run anywhere gets half of the cores.
cores=$(lscpu -p=core,socket | grep -v '^#' | sort -u | wc -l)
share=$((cores > 1 ? cores / 2 : 1))
free=(--bind-to none)
launcher openmpi mpirun.openmpi
launcher pmi mpiexec.hydra
[ "$found" = 1 ] || { echo "skipped: neither Open MPI nor MPICH is installed (scripts/install_packages test)"; exit 77; }
exit "$((failures > 0))"
