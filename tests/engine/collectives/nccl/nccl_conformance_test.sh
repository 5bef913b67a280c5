#!/usr/bin/env bash
# nccl_conformance_test.sh PACELINE NCCL_CONFORMANCE_RANK RANKS: the conformance suite over NCCL. Exits with 77 and prints the reason if
# there are fewer GPUs than ranks.
set -uo pipefail
paceline=$1 rank=$2 ranks=$3
"$rank" gpus "$ranks" || exit
exec "$paceline" run --nproc-per-node "$ranks" --all-ranks "$rank" run "$ranks"
