#!/usr/bin/env python3
"""Converts weights between PyTorch's files (torch.save of a state dict) and safetensors files, which train_image reads and writes.

    tools/torch_weights.py resnet18.pth resnet18.safetensors        for train_image --model resnet18 --evaluate --weights resnet18.safetensors
    tools/torch_weights.py resnet18.safetensors resnet18.pth        for model.load_state_dict(torch.load("resnet18.pth"))

Names do not change, except that a leading "module.", which DistributedDataParallel adds, is removed. If a file is a checkpoint, its entry
"state_dict" or "model" is used. Needs only PyTorch. A .pth file can contain code, which runs when it is loaded: convert only files that you
trust.
"""
import argparse
import json
import os
import struct
import sys

import torch

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
         torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
TYPES = {name: dtype for dtype, name in NAMES.items()}
PREFIX = "module."


def tensors_of(loaded, path):
    for entry in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(entry), dict):
            loaded = loaded[entry]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        sys.exit(f"{path}: not a state dict: tensors by name")
    if all(name.startswith(PREFIX) for name in loaded):
        loaded = {name[len(PREFIX):]: value for name, value in loaded.items()}
    odd = [f"{name} is {value.dtype}" for name, value in loaded.items() if value.dtype not in NAMES]
    if odd:
        sys.exit(f"{path}: no element type of safetensors: {', '.join(odd)}")
    return {name: value.detach().cpu().contiguous() for name, value in loaded.items()}


def bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def write_safetensors(path, tensors):
    header, bodies, offset = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        bodies.append(bytes_of(tensor))
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(bodies[-1])]}
        offset += len(bodies[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(bodies)
    os.replace(path + ".part", path)


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        empty = torch.empty(entry["shape"], dtype=TYPES[entry["dtype"]])
        tensors[name] = torch.frombuffer(body, dtype=empty.dtype, offset=begin, count=empty.numel()).reshape(empty.shape).clone() if end > begin else empty
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", help="a file of weights: safetensors if its name ends so, otherwise PyTorch's")
    parser.add_argument("wanted", help="the file to write, of the other kind")
    options = parser.parse_args()
    to_torch = options.given.endswith(".safetensors")
    if to_torch == options.wanted.endswith(".safetensors"):
        sys.exit("one of the two files must end in .safetensors, and only one")
    if to_torch:
        tensors = read_safetensors(options.given)
        torch.save(tensors, options.wanted)
    else:
        tensors = tensors_of(torch.load(options.given, map_location="cpu"), options.given)
        write_safetensors(options.wanted, tensors)
    print(f"{options.wanted}: {len(tensors)} tensors")


main()
