#!/usr/bin/env python3
"""Compares the models with the usual Python models, given the same random weights: GPT and BERT with Hugging Face's transformers, ResNet and
EfficientNet with torchvision. Compares logits, and the weights after they are written back.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch torchvision transformers safetensors
    /tmp/venv/bin/python tests/training/models/beside_python_models.py build/dev/tests/training/train/model_logits

Run by hand, because Debian does not have the packages transformers and torchvision.
"""
import subprocess
import sys
import tempfile

import torch
import torchvision
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

program = sys.argv[1]
wrong = 0


def compare(what, kind, model, inputs, numbers, tolerance):
    global wrong
    folder = tempfile.mkdtemp()
    weights = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
    save_file(weights, f"{folder}/weights.safetensors")
    save_file({"input": inputs}, f"{folder}/input.safetensors")
    files = [f"{folder}/{name}.safetensors" for name in ("weights", "input", "copy")]
    output = subprocess.run([program, kind, *files, *map(str, numbers)], stdout=subprocess.PIPE, check=True).stdout
    ours = torch.tensor([[float(word) for word in line.split()] for line in output.decode().splitlines()])
    with torch.no_grad():
        theirs = model.eval()(inputs)
    theirs = (theirs if isinstance(theirs, torch.Tensor) else theirs.logits).flatten(0, -2)
    difference = (ours - theirs).abs().max().item()
    copy = load_file(f"{folder}/copy.safetensors")
    same = all(torch.equal(weights[key], value) for key, value in copy.items())
    wrong += not (difference < tolerance and same)
    print(f"{what}: logits of up to {theirs.abs().max().item():.3f} differ by at most {difference:.2e} (limit {tolerance:g}), "
          f"{len(copy)} tensors written back {'are the same' if same else 'DIFFER'}")


torch.manual_seed(1)
for layers, width, heads, context in ((2, 32, 4, 16), (4, 96, 6, 64), (12, 768, 12, 128)):
    numbers = (5000, context, layers, width, heads)
    tokens = torch.randint(5000, (1, context))
    shape = f"{layers} layers of {width}, {context} tokens"
    config = GPT2Config(vocab_size=5000, n_positions=context, n_layer=layers, n_embd=width, n_head=heads, initializer_range=width**-0.5)
    compare(f"gpt, {shape}", "gpt", GPT2LMHeadModel(config), tokens, numbers, 1e-4)
    config = BertConfig(vocab_size=5000, max_position_embeddings=context, num_hidden_layers=layers, hidden_size=width,
                        num_attention_heads=heads, intermediate_size=4 * width, initializer_range=width**-0.5)
    compare(f"bert, {shape}", "bert", BertForMaskedLM(config), tokens, numbers, 1e-4)


# Random statistics and weights, as after a training: the logits of a new network are too uniform to show differences.
def stir(model, scale):
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5 * scale, 1.5 * scale)
            torch.nn.init.normal_(module.bias, 0, 0.1)
    return model


images = torch.randn(2, 3, 224, 224)
for depth in (18, 34, 50, 101):
    compare(f"resnet{depth}", "resnet", stir(getattr(torchvision.models, f"resnet{depth}")(), 0.3), images, (depth,), 1e-5)
for variant in range(8):
    compare(f"efficientnet_b{variant}", "efficientnet", stir(getattr(torchvision.models, f"efficientnet_b{variant}")(), 1), images, (variant,), 1e-5)
sys.exit(wrong > 0)
