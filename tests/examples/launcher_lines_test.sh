#!/usr/bin/env bash
# launcher_lines_test.sh PROGRAM PACELINE TORCHRUN README...: runs the commands in each README's table of launchers as printed, with PROGRAM as
# ./train. Of the rows for torchrun it runs the one that names TORCHRUN's version of PyTorch. It leaves out rows that need a cluster, and runs a
# command that several READMEs have only once.
set -uo pipefail
program=$1 paceline=$2 torchrun=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$program" "$work/train"
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
PATH=$(dirname "$paceline"):$(dirname "$torchrun"):$PATH
failures=0

python=$(sed -n '1s/^#!//p' "$torchrun")
version=$("$python" -c 'import torch; print(torch.__version__)') || {
  echo "FAILED: $torchrun cannot import torch: install python3-torch (scripts/install_packages test), or for PyPI's wheel what" \
    "scripts/install_pypi_libtorch FOLDER --torchrun installs"
  exit 1
}

declare -A has_run=()

# expect PATTERN LINE: runs LINE in a shell, and checks that the exit code is 0 and that the output matches the pattern.
expect() {
  local output code=0
  [ -z "${has_run["$2"]:-}" ] || return 0
  has_run["$2"]=yes
  output=$(cd "$work" && timeout 80 bash -c "$2" 2>&1) || code=$?
  if [ "$code" = 0 ] && grep -qE -e "$1" <<<"$output"; then
    echo "ok $2"
  else
    echo "FAILED $2: exit $code (wanted 0), wanted /$1/ in:"
    tail -n 25 <<<"$output"
    failures=$((failures + 1))
  fi
}

for readme in "$@"; do
  mapfile -t rows < <(grep -E '^\| .* \| `[^`]*\./train[^`]*` \|$' "$readme")
  tried=" "
  # A row may be for one minor version only: 2.6 instead of 2.
  wanted=${version%.*}
  grep -q "PyTorch $wanted " "$readme" || wanted=${version%%.*}
  for row in "${rows[@]}"; do
    line=$(sed -E 's/.*\| `([^`]+)` \|$/\1/' <<<"$row")
    case $line in
      *--hosts*) continue ;;
      *torchrun*) [[ $row == *"PyTorch $wanted "* ]] || continue ;;&
      ./train*) expect 'rank 0 of 1 over none' "$line" ;;
      paceline* | mpirun* | *torchrun*) expect 'rank 0 of 2 over shm' "$line" ;;
      *) continue ;;
    esac
    tried+="$(grep -oE '\./train|paceline|mpirun|torchrun' <<<"$line" | head -n 1) "
  done
  [ "$tried" = " ./train paceline mpirun torchrun " ] || { echo "FAILED $readme: tried$tried"; failures=$((failures + 1)); }
done
echo "with PyTorch $version"
exit "$((failures > 0))"
