# shellcheck shell=bash disable=SC2034
# For scripts that start train_image: source this file with the arguments PACELINE TRAIN_IMAGE. It provides a small data set, and all of
# expectations.sh.
paceline=$1
train_image=$2
# shellcheck source=tests/examples/expectations.sh
source "$(dirname "${BASH_SOURCE[0]}")/expectations.sh"

# A small data set in the IDX format: 600 training and 200 test images. The label of an image is the number of its white row.
/usr/bin/python3 - "$work" <<'PY'
import os, struct, sys
folder = sys.argv[1] + "/idx"
os.makedirs(folder)
for prefix, count in (("train", 600), ("t10k", 200)):
    labels = bytes((i * 7) % 10 for i in range(count))
    images = b"".join(bytes(255 if 2 * label <= y < 2 * label + 3 else (i * x * y) % 60 for y in range(28) for x in range(28))
                      for i, label in enumerate(labels))
    with open(f"{folder}/{prefix}-images-idx3-ubyte", "wb") as f:
        f.write(struct.pack(">4BIII", 0, 0, 8, 3, count, 28, 28) + images)
    with open(f"{folder}/{prefix}-labels-idx1-ubyte", "wb") as f:
        f.write(struct.pack(">4BI", 0, 0, 8, 1, count) + labels)
PY
data=(--dataset mnist --data-dir "$work/idx")
run2=("$paceline" run --nproc-per-node 2)

