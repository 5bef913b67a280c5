# shellcheck shell=bash
# Sourced by the tests of backend mpi that start it themselves. Open MPI: as root in a container, more ranks than cores. Leaks that an MPI
# leaves are not ours. What is left in TMPDIR goes with it.
export PACELINE_BACKEND=mpi OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export ASAN_OPTIONS=detect_leaks=0
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
