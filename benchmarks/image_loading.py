#!/usr/bin/python3
"""Images per second and core when decoding and augmenting a folder of JPEGs: Paceline's loader and Python's.

    benchmarks/image_loading.py --cifar ../shared/data/cifar10-jpeg.tar.xz [--images 512] [--rounds 5] [--build build/release]

Makes a folder of 500x375 JPEGs from enlarged CIFAR-10 images (quality 90) and lets two programs take turns: image_bench, and
this script with torchvision's ImageFolder and a DataLoader with one worker. Both read, decode, take a random resized crop of 224,
flip and normalise, in batches of 32. The time is the processor time of all threads and processes after they have started, so
other programs on the machine matter less; the wall-clock time is printed too. Bar: 1.5 times Python's speed. Then 2 ranks of
train_image train ResNet-18 on the folder (batch 8, one loader thread per rank), which shows the share of a step spent waiting for data.
Bar: 2%. Needs python3-torchvision.
"""
import argparse
import io
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time

import side_by_side


def make_folder(archive, folder, count):
    from PIL import Image
    with tarfile.open(archive) as tar:
        made = 0
        for member in tar:
            parts = member.name.split("/")
            if not member.isfile() or "train" not in parts or not parts[-1].endswith(".jpg"):
                continue
            image = Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB").resize((500, 375), Image.BICUBIC)
            path = os.path.join(folder, "0" if made % 2 else "1")
            os.makedirs(path, exist_ok=True)
            image.save(os.path.join(path, f"{made:05}.jpg"), quality=90)
            made += 1
            if made == count:
                return


def data_share(build, folder, steps):
    """The wait for data in per cent of the training time, with two ranks that train on folder/train."""
    for kind in ("0", "1"):
        val = os.path.join(folder, "val", kind)
        os.makedirs(val)
        for name in sorted(os.listdir(os.path.join(folder, "train", kind)))[:4]:
            os.symlink(os.path.join(folder, "train", kind, name), os.path.join(val, name))
    process = side_by_side.start([side_by_side.program(build, "apps", "paceline"), "run", "--nproc-per-node", "2", "--threads-per-rank", "1",
                                  side_by_side.program(build, "examples", "train_image"), "--dataset", "folder", "--data-dir", folder,
                                  "--model", "resnet18", "--batch-size", "8", "--workers", "1", "--max-steps", str(steps)])
    side_by_side.wait_all([process], 3600)
    return float(re.search(r"^ *data +([\d.]+)%", process.output, re.M)[1])


def processor_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def run_python(folder, count, jitter):
    import torch
    from torchvision import datasets, transforms
    torch.set_num_threads(1)
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    if jitter:
        steps.append(transforms.ColorJitter(jitter, jitter, jitter))
    steps += [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    dataset = torch.utils.data.Subset(datasets.ImageFolder(folder, transforms.Compose(steps)), range(count))
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=1)
    cpu, begin, seen = processor_s(), time.monotonic(), 0
    iterator = iter(loader)
    for images, _ in iterator:
        seen += images.shape[0]
    wall = time.monotonic() - begin
    del iterator  # ends the worker and waits for it; its processor time counts from then on
    print(json.dumps({"images": seen, "wall_s": wall, "cpu_s": processor_s() - cpu}))


def measure(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", help="cifar10-jpeg.tar.xz")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jitter", type=float, default=0)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--python", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.python:
        return run_python(options.python, options.images, options.jitter)
    bench = side_by_side.program(options.build, "benchmarks", "image_bench")
    print(side_by_side.machine())
    own, other, ratios, walls = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        images = os.path.join(folder, "train")
        make_folder(options.cifar, images, options.images)
        common = ["--images", str(options.images), "--jitter", str(options.jitter)]
        for turn in range(options.rounds + 1):  # the first turn does not count: it fills the page cache
            a = measure([bench, images, *common])
            b = measure([sys.executable, __file__, "--python", images, *common])
            assert a["images"] == b["images"] == options.images
            if turn == 0:
                continue
            own.append(a["images"] / a["cpu_s"])
            other.append(b["images"] / b["cpu_s"])
            ratios.append(own[-1] / other[-1])
            walls.append(b["wall_s"] / a["wall_s"])
        share = data_share(options.build, folder, options.images // 16)
    print(f"images/s and core: Paceline {side_by_side.spread(own, 0)}, Python {side_by_side.spread(other, 0)}")
    print(f"ratio {side_by_side.spread(ratios)}; of wall clocks {side_by_side.spread(walls)}")
    print(f"2 ranks of ResNet-18 wait for data in {share:.1f}% of their time")


main()
