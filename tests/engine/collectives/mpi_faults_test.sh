#!/usr/bin/env bash
# mpi_faults_test.sh MPIEXEC MPI_FAULTS_RANK: the promises of backend mpi when a rank freezes, a group is aborted, or a stop is requested.
set -uo pipefail
mpiexec=$1 rank=$2
# shellcheck source-path=SCRIPTDIR source=mpi_environment.sh
. "${BASH_SOURCE%/*}/mpi_environment.sh"
failures=0

# expect_ok SCENARIO RANKS: every rank has written "ok". The launcher's exit code does not matter, because ranks exit without
# MPI_Finalize().
expect_ok() {
  local folder=$TMPDIR/$1-$2 output i said
  mkdir "$folder"
  output=$(timeout 150 "$mpiexec" -n "$2" "$rank" "$1" "$folder" 2>&1)
  for ((i = 0; i < $2; i++)); do
    said=$(cat "$folder/$i" 2>/dev/null)
    if [ "$said" != ok ]; then
      echo "FAILED $1, $2 ranks:"
      (cd "$folder" && tail -n 1 ./*)
      tail -n 25 <<<"$output"
      failures=$((failures + 1))
      return
    fi
  done
  echo "ok $1, $2 ranks"
}

for ranks in 2 3; do
  for scenario in frozen rounds stop; do expect_ok "$scenario" "$ranks"; done
done
exit "$((failures > 0))"
