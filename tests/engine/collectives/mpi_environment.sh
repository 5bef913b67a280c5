# shellcheck shell=bash
# Sourced by the tests of backend mpi that start it themselves. Open MPI runs as root in a container, with more ranks than cores. Leaks
# inside an MPI library are not ours. Files that ranks leave in TMPDIR are removed with it.
export PACELINE_BACKEND=mpi OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export ASAN_OPTIONS=detect_leaks=0
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
