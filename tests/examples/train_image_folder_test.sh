#!/usr/bin/env bash
# train_image_folder_test.sh PACELINE TRAIN_IMAGE: a folder of images, the larger models, augmentation, files with weights; good and bad input.
set -uo pipefail
# shellcheck source=tests/examples/small_job.sh
source "$(dirname "$0")/small_job.sh" "$1" "$2"

# Three classes of PNG files of 40x30 pixels, each class of one colour with noise.
/usr/bin/python3 - "$work/folder" <<'PY'
import os, random, struct, sys, zlib
def png(path, colour, noise):
    rows = b"".join(b"\0" + bytes(min(255, max(0, c + noise.randrange(-40, 41))) for _ in range(40) for c in colour) for _ in range(30))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 30, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
noise = random.Random(1)
for split, count in (("train", 24), ("val", 8)):
    for name, colour in (("blue", (40, 60, 200)), ("green", (40, 200, 60)), ("red", (200, 40, 60))):
        os.makedirs(f"{sys.argv[1]}/{split}/{name}")
        for i in range(count):
            png(f"{sys.argv[1]}/{split}/{name}/{i:02}.png", colour, noise)
PY
folder=(--dataset folder --data-dir "$work/folder" --batch-size 8)
small=(--image-size 32)

expect cnn_on_two_ranks 0 'test accuracy +(9[0-9]|100).* of 24 images' "${run2[@]}" "$train_image" "${folder[@]}" --epochs 3 --workers 2 \
  --random-erasing 0.1 --mixup 0.2 --cutmix 0.5 --label-smoothing 0.1 --weights "$work/cnn.safetensors"
expect opening 0 'train_image: cnn on .*folder/train \(72 training images of 3x32x32\)' "$train_image" "${folder[@]}" --max-steps 1
expect top_5 0 'top-5 accuracy +100.00%' "$train_image" "${folder[@]}" --max-steps 1
expect usual_size 0 '3x224x224' "$train_image" "${folder[@]}" --max-steps 1 --model resnet18 --batch-size 2
expect efficient_net 0 'test accuracy' "${run2[@]}" "$train_image" "${folder[@]}" "${small[@]}" --max-steps 2 --model efficientnet_b0 --optimizer lamb
expect resnet_with_sync_batch_norm 0 'test accuracy' "${run2[@]}" "$train_image" "${folder[@]}" "${small[@]}" --max-steps 2 --model resnet18 \
  --sync-batch-norm --optimizer lars --lr 1 --ema 0.9 --weights "$work/resnet.safetensors" --metrics "$work/resnet.jsonl"
expect in_16_bits 0 'test accuracy' "$train_image" "${folder[@]}" "${small[@]}" --max-steps 1 --precision autocast-bf16
expect one_colour 0 'test accuracy' "$train_image" "${data[@]}" --max-steps 1 --batch-size 8 --model resnet18

# The file has the weights that were evaluated last, here averaged ones.
accuracy=$(grep '"event":"end"' "$work/resnet.jsonl" | grep -o '"accuracy":[^,]*')
expect evaluated_again 0 'test accuracy .* of 24 images' "$train_image" "${folder[@]}" "${small[@]}" --model resnet18 --evaluate \
  --weights "$work/resnet.safetensors" --metrics "$work/again.jsonl"
expect with_the_same_result 0 "\"event\":\"evaluation\",$accuracy," cat "$work/again.jsonl"
# shellcheck disable=SC2016
expect two_ranks_evaluate_alike 0 "$accuracy," bash -c '"$@" >/dev/null && tail -n 1 "$0"' "$work/again.jsonl" "${run2[@]}" "$train_image" \
  "${folder[@]}" "${small[@]}" --model resnet18 --evaluate --weights "$work/resnet.safetensors" --metrics "$work/again.jsonl"

# A run that was interrupted within an epoch has the same losses. Below, the program's own option gives the number of logical shards.
mixed=("${run2[@]}" "$train_image" "${folder[@]}" --epochs 2 --seed 5 --cutmix 1 --random-erasing 0.5)
expect straight 0 ' s, 10 steps' "${mixed[@]}" --metrics "$work/straight.jsonl"
expect half 0 ' s, 3 steps' "${mixed[@]}" --max-steps 3 --checkpoint-dir "$work/half" --metrics "$work/half.jsonl"
expect resumed 0 'resumed at step 3' "${mixed[@]}" --checkpoint-dir "$work/half" --resume --metrics "$work/half.jsonl"
# shellcheck disable=SC2016
expect the_same_losses 0 '^10 equal$' bash -c 'cmp <(grep event\":\"step\" "$1") <(grep event\":\"step\" "$2") &&
  echo "$(grep -c \"event\":\"step\" "$2") equal"' _ "$work/straight.jsonl" "$work/half.jsonl"
sharded=("$train_image" "${folder[@]}" --max-steps 4 --logical-shards 4 --threads 1 --batch-size 4 --model efficientnet_b0 "${small[@]}")
expect shards_of_one 0 'test accuracy' "${sharded[@]}" --weights "$work/one"
expect shards_of_two 0 'test accuracy' "${run2[@]}" "${sharded[@]}" --weights "$work/two"
# Left out: the running statistics of batch normalisation, which are those of rank 0's own shards.
expect shards_have_the_same_bits 0 '^the same$' /usr/bin/python3 - "$work/one" "$work/two" <<'PY'
import json, struct, sys
def tensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    return {k: body[slice(*v["data_offsets"])] for k, v in header.items() if k != "__metadata__" and "running" not in k and "tracked" not in k}
one, two = map(tensors, sys.argv[1:])
print("the same" if one == two and len(one) > 100 else [k for k in one if one[k] != two.get(k)][:5])
PY

# Bad input is refused.
expect weights_of_another_model 2 'these weights belong to another model:' "$train_image" "${folder[@]}" "${small[@]}" --model resnet18 --evaluate \
  --weights "$work/cnn.safetensors"
expect its_differences 2 'conv1.weight: Float .64, 3, 3, 3. here, given Float .32, 3, 3, 3.' "$train_image" "${folder[@]}" "${small[@]}" --model resnet18 --evaluate \
  --weights "$work/cnn.safetensors"
expect weights_of_other_classes 2 'linear2.weight: Float .10, 512. here, given Float .3, 512.' "$train_image" --evaluate --weights "$work/cnn.safetensors"
expect no_weights_file 1 'nothing.safetensors' "${run2[@]}" "$train_image" "${data[@]}" --evaluate --weights "$work/nothing.safetensors"
expect no_place_for_weights 1 'the weights file .*missing/x' "$train_image" "${data[@]}" --weights "$work/missing/x"
expect net_in_colour 2 '--model net: takes images of 1x28x28, those of --dataset folder have three colours' "$train_image" "${folder[@]}" --model net
expect no_norm 2 '--sync-batch-norm: --model cnn has no batch normalisation' "$train_image" "${folder[@]}" --sync-batch-norm
expect evaluate_what 2 '--evaluate: needs --weights' "$train_image" "${folder[@]}" --evaluate
expect crop_in_a_folder 2 '--augment crop: is for images of one size' "$train_image" "${folder[@]}" --augment crop
expect imagenet_in_memory 2 '--augment imagenet: needs --dataset folder' "$train_image" --augment imagenet
expect erasing_in_memory 2 '--random-erasing: needs --dataset folder' "$train_image" --random-erasing 0.5
expect size_in_memory 2 '--image-size: needs --dataset folder' "$train_image" --image-size 32
expect unknown_model 2 "'resnet19' is not one of .*; did you mean resnet18" "$train_image" --model resnet19
expect odd_size 2 'cnn: the image size 30x30 does not divide by 4' "$train_image" "${folder[@]}" --image-size 30
expect no_folder 2 'needs --data-dir' "$train_image" --dataset folder
expect no_val 2 "folder/train/val: no such folder" "$train_image" --dataset folder --data-dir "$work/folder/train"
cp -r "$work/folder" "$work/other"
mv "$work/other/val/red" "$work/other/val/violet"
expect other_classes 2 'red: only in train' "$train_image" --dataset folder --data-dir "$work/other"
cp -r "$work/folder" "$work/damaged"
truncate -s 100 "$work/damaged/train/red/03.png"
expect damaged_file 1 'red/03.png' "${run2[@]}" "$train_image" --dataset folder --data-dir "$work/damaged" --epochs 1
expect damaged_file_is_skipped 0 'skipped: .*red/03.png' "$train_image" --dataset folder --data-dir "$work/damaged" --epochs 1 --skip-damaged
truncate -s 100 "$work/damaged/val/red/01.png"
expect skipped_files_are_counted 0 'skipped files +2$' "${run2[@]}" "$train_image" --dataset folder --data-dir "$work/damaged" --epochs 1 \
  --skip-damaged --metrics "$work/skipped.jsonl" --weights "$work/skipped.safetensors"
expect skipped_files_are_in_the_metrics 0 '"event":"end",.*"skipped_files":2' cat "$work/skipped.jsonl"
expect skipped_files_of_an_evaluation 0 'skipped files +1$' "${run2[@]}" "$train_image" --dataset folder --data-dir "$work/damaged" --skip-damaged \
  --evaluate --weights "$work/skipped.safetensors"
expect nothing_is_skipped 0 'skipped files +0$' "$train_image" --dataset folder --data-dir "$work/folder" --max-steps 1 --skip-damaged
exit "$((failures > 0))"
