#!/usr/bin/env bash
# device_test.sh PACELINE TRAIN_IMAGE TRAIN_GPT LIBRARY CUDART NCCL: the programs with --device, on the simulated CUDA devices of LIBRARY, also over
# the stand-ins CUDART and NCCL. Losses are those of the CPU, and a run that was saved on a device goes on on the CPU.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"
train_gpt=$3
on_devices=(env LD_PRELOAD="$4")
over_nccl=(env LD_PRELOAD="$4" "PACELINE_LIBCUDART=$5" "PACELINE_LIBNCCL=$6")

# with_losses_of FILE OTHER: the losses of the steps in FILE are those in OTHER, up to rounding.
with_losses_of() {
  /usr/bin/python3 - "$1" "$2" <<'PY'
import json, sys
def losses(path):
    return [line["loss"] for line in map(json.loads, open(path)) if line["event"] == "step"]
found, wanted = losses(sys.argv[1]), losses(sys.argv[2])
assert wanted and len(found) == len(wanted), (len(found), len(wanted))
for a, b in zip(found, wanted):
    assert abs(a - b) <= 1e-3 * max(1, abs(b)), (a, b)
print("the same losses")
PY
}
export -f with_losses_of

image=("${run2[@]}" "$train_image" "${data[@]}" --seed 3)
expect image_cpu 0 ' s, 8 steps' "${image[@]}" --max-steps 8 --metrics "$work/image.cpu"
expect image_cuda 0 ' s, 8 steps' "${on_devices[@]}" "${image[@]}" --device cuda --max-steps 8 --metrics "$work/image.cuda" --checkpoint-dir "$work/run"
expect image_losses 0 'the same losses' bash -c 'with_losses_of "$@"' _ "$work/image.cuda" "$work/image.cpu"
expect image_goes_on 0 'resumed at step 8' "${image[@]}" --max-steps 12 --checkpoint-dir "$work/run" --resume
expect two_ranks_on_one_device 0 ' s, 2 steps' "${on_devices[@]}" "${image[@]}" --device cuda:1 --max-steps 2

printf 'the cat sat on the mat, and the dog sat on the cat. %.0s' {1..200} >"$work/text"
gpt=("$train_gpt" --text "$work/text" --layers 2 --width 32 --heads 2 --context 32 --seed 3 --max-steps 4)
expect gpt_cpu 0 ' s, 4 steps' "${run2[@]}" "${gpt[@]}" --mesh tp=2 --metrics "$work/gpt.cpu"
expect gpt_cuda 0 ' s, 4 steps' "${on_devices[@]}" "${run2[@]}" "${gpt[@]}" --mesh tp=2 --device cuda --metrics "$work/gpt.cuda"
expect gpt_losses 0 'the same losses' bash -c 'with_losses_of "$@"' _ "$work/gpt.cuda" "$work/gpt.cpu"
expect gpt_shards 0 ' s, 4 steps' "${on_devices[@]}" "${run2[@]}" "${gpt[@]}" --shard 2 --device cuda
expect gpt_dp_cpu 0 ' s, 4 steps' "${run2[@]}" "${gpt[@]}" --shard 1 --metrics "$work/dp.cpu"
expect gpt_stage_3 0 ' s, 4 steps' "${on_devices[@]}" "${run2[@]}" "${gpt[@]}" --shard 3 --device cuda --metrics "$work/dp.cuda" --sample 5 \
  --checkpoint-dir "$work/gpt"
expect gpt_stage_3_losses 0 'the same losses' bash -c 'with_losses_of "$@"' _ "$work/dp.cuda" "$work/dp.cpu"
expect gpt_stage_3_goes_on 0 'resumed at step 4' "${run2[@]}" "${gpt[@]}" --shard 3 --max-steps 6 --checkpoint-dir "$work/gpt" --resume
expect gpt_stage_3_nccl 0 ' s, 4 steps' "${over_nccl[@]}" "${run2[@]}" --backend cpu:paceline,cuda:nccl "${gpt[@]}" --shard 3 --device cuda \
  --metrics "$work/dp.nccl"
expect gpt_stage_3_nccl_losses 0 'the same losses' bash -c 'with_losses_of "$@"' _ "$work/dp.nccl" "$work/dp.cpu"
expect gpt_pp_cpu 0 ' s, 4 steps' "${run2[@]}" "${gpt[@]}" --mesh pp=2 --metrics "$work/pp.cpu"
expect gpt_pp_cuda 0 ' s, 4 steps' "${on_devices[@]}" "${run2[@]}" "${gpt[@]}" --mesh pp=2 --device cuda --metrics "$work/pp.cuda"
expect gpt_pp_losses 0 'the same losses' bash -c 'with_losses_of "$@"' _ "$work/pp.cuda" "$work/pp.cpu"
expect gpt_pp_nccl 0 ' s, 4 steps' "${over_nccl[@]}" "${run2[@]}" --backend cpu:paceline,cuda:nccl "${gpt[@]}" --mesh pp=2 --device cuda \
  --metrics "$work/pp.nccl"
expect gpt_nccl_losses 0 'the same losses' bash -c 'with_losses_of "$@"' _ "$work/pp.nccl" "$work/pp.cpu"

expect no_such_device 2 'device cuda:9: this process sees 4 CUDA devices' "${on_devices[@]}" "${image[@]}" --device cuda:9
# LibTorch was built without CUDA, or its part for CUDA lacks a library, or there is no GPU.
expect no_cuda 2 'device cuda: .*choose cpu' "${image[@]}" --device cuda
expect no_name 2 "unknown device 'gpu'; choose cpu, cuda or cuda:N" "${image[@]}" --device gpu
exit "$((failures > 0))"
