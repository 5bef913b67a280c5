#!/usr/bin/env bash
# short_calls.sh LIBRARY COMMAND...: runs the command while its calls are interrupted, refused and shortened (short_calls.cpp). The exit code is the
# command's, or 1 if any of the three happened fewer than a hundred times. SHORT_CALLS_SEED repeats a run.
set -uo pipefail
library=$1
shift
export SHORT_CALLS_SEED=${SHORT_CALLS_SEED:-$RANDOM}
SHORT_CALLS_LOG=$(mktemp)
export SHORT_CALLS_LOG
trap 'rm -f "$SHORT_CALLS_LOG"' EXIT
echo "SHORT_CALLS_SEED=$SHORT_CALLS_SEED"
LD_PRELOAD=$library "$@" || exit
awk '{ interrupted += $1; refused += $3; shortened += $5 }
  END { print interrupted + 0 " interrupted, " refused + 0 " refused, " shortened + 0 " shortened"
        exit interrupted < 100 || refused < 100 || shortened < 100 }' "$SHORT_CALLS_LOG"
