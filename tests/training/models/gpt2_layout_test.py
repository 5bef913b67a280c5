#!/usr/bin/env python3
"""gpt2_layout_test.py MODEL_LOGITS TRAIN_GPT: GPT-2's file layout in both directions, compared with an implementation of GPT-2 that is written here from
its paper and from the layout of transformers (linear layers are Conv1D: y = x W + b, W of [in, out]). Random weights in that layout give the same
logits in Paceline and are unchanged when written back; the file of train_gpt --weights has exactly these names and shapes and gives the same logits here."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

import torch

program, train_gpt = sys.argv[1:]
torch.manual_seed(1)
torch.set_num_threads(1)


def write(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        kind = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32", (name, entry)
        tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(entry["shape"])
    return tensors


def shapes(vocabulary, context, layers, width):
    expected = {"transformer.wte.weight": [vocabulary, width], "transformer.wpe.weight": [context, width],
                "transformer.ln_f.weight": [width], "transformer.ln_f.bias": [width]}
    for layer in range(layers):
        h = f"transformer.h.{layer}."
        for name, sizes in (("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)),
                            ("mlp.c_fc", (width, 4 * width)), ("mlp.c_proj", (4 * width, width))):
            expected[h + name + ".weight"], expected[h + name + ".bias"] = list(sizes), [sizes[1]]
        for name in ("ln_1", "ln_2"):
            expected[h + name + ".weight"] = expected[h + name + ".bias"] = [width]
    return expected


def logits(w, tokens, layers, heads):
    def norm(x, name):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-5)

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    count = tokens.shape[1]
    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:count]
    hidden = torch.triu(torch.ones(count, count, dtype=torch.bool), 1)
    for layer in range(layers):
        h = f"transformer.h.{layer}."
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
        x = x + conv1d((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), h + "attn.c_proj")
        inner = conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x = x + conv1d(inner, h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def check(holds, what):
    print("ok" if holds else "FAILED", what)
    if not holds:
        sys.exit(1)


def compare(weights, file, folder, vocabulary, context, layers, width, heads):
    tokens = torch.randint(vocabulary, (1, context))
    write(f"{folder}/input", {"input": tokens})
    numbers = map(str, (vocabulary, context, layers, width, heads))
    done = subprocess.run([program, "gpt", file, f"{folder}/input", f"{folder}/copy", *numbers], stdout=subprocess.PIPE, check=True, text=True)
    ours = torch.tensor([[float(word) for word in line.split()] for line in done.stdout.splitlines()])
    theirs = logits(weights, tokens, layers, heads).flatten(0, 1)
    difference = (ours - theirs).abs().max().item()
    check(difference < 1e-4, f"logits of up to {theirs.abs().max().item():.2f} differ by {difference:.1e}")
    copy = read(f"{folder}/copy")
    check(copy.keys() == weights.keys() and all(torch.equal(copy[name], weights[name]) for name in weights), "written back as it was")


with tempfile.TemporaryDirectory() as folder:
    sizes = dict(vocabulary=50, context=12, layers=2, width=16)
    weights = {name: torch.randn(shape) * 0.3 for name, shape in shapes(**sizes).items()}
    write(f"{folder}/weights", weights)
    compare(weights, f"{folder}/weights", folder, heads=4, **sizes)

    with open(f"{folder}/text", "w") as f:
        f.write("a rank sends its gradient to every other rank " * 200)
    # A tokenizer with 257 tokens; the model has room for 320.
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(256 - len(shown))] + ["ra"]
    os.mkdir(f"{folder}/bpe")
    with open(f"{folder}/bpe/vocab.json", "w") as f:
        json.dump({name: number for number, name in enumerate(letters)}, f)
    with open(f"{folder}/bpe/merges.txt", "w") as f:
        f.write("#version: 0.2\nr a\n")
    for tokenizer, vocabulary in (("bytes", 256), (f"{folder}/bpe", 257)):
        file = f"{folder}/trained"
        subprocess.run([train_gpt, "--text", f"{folder}/text", "--tokenizer", tokenizer, "--layers", "2", "--width", "32", "--heads", "4",
                        "--context", "16", "--max-steps", "5", "--sample", "0", "--weights", file], check=True, stdout=subprocess.DEVNULL)
        sizes = dict(vocabulary=vocabulary, context=16, layers=2, width=32)
        weights = read(file)
        found, expected = {name: list(tensor.shape) for name, tensor in weights.items()}, shapes(**sizes)
        check(found == expected, f"train_gpt --tokenizer {os.path.basename(tokenizer)}: GPT-2's {len(expected)} names and shapes"
              + ("" if found == expected else f": {found} where {expected} is wanted"))
        compare(weights, file, folder, heads=4, **sizes)
