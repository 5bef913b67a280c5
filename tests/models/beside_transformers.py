#!/usr/bin/env python3
"""Compares GPT and BERT with Hugging Face's transformers: the logits of models with random weights, and the weights when written back.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers safetensors
    /tmp/venv/bin/python tests/models/beside_transformers.py build/dev/tests/train/transformer_logits

Run by hand: the package transformers is not in Debian.
"""
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

program = sys.argv[1]
TOLERANCE = 1e-4
wrong = 0


def compare(name, model, vocabulary, context, layers, width, heads):
    global wrong
    folder = tempfile.mkdtemp()
    weights = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
    save_file(weights, f"{folder}/model.safetensors")
    tokens = torch.randint(vocabulary, (1, context))
    words = [str(word) for word in (vocabulary, context, layers, width, heads)]
    output = subprocess.run([program, name, f"{folder}/model.safetensors", *words, f"{folder}/copy.safetensors"],
                            input=" ".join(str(token) for token in tokens[0].tolist()).encode(), stdout=subprocess.PIPE, check=True).stdout
    ours = torch.tensor([[float(word) for word in line.split()] for line in output.decode().splitlines()])
    with torch.no_grad():
        theirs = model.eval()(tokens).logits[0]
    difference = (ours - theirs).abs().max().item()
    copy = load_file(f"{folder}/copy.safetensors")
    same = all(torch.equal(weights[key], value) for key, value in copy.items())
    good = difference < TOLERANCE and same
    wrong += not good
    print(f"{name}, {layers} layers of {width}, {context} tokens: logits of up to {theirs.abs().max().item():.3f} differ by at most "
          f"{difference:.2e}, {len(copy)} tensors written back {'are the same' if same else 'DIFFER'}")


torch.manual_seed(1)
for layers, width, heads, context in ((2, 32, 4, 16), (4, 96, 6, 64), (12, 768, 12, 128)):
    config = GPT2Config(vocab_size=5000, n_positions=context, n_layer=layers, n_embd=width, n_head=heads, initializer_range=width**-0.5)
    compare("gpt", GPT2LMHeadModel(config), 5000, context, layers, width, heads)
    config = BertConfig(vocab_size=5000, max_position_embeddings=context, num_hidden_layers=layers, hidden_size=width,
                        num_attention_heads=heads, intermediate_size=4 * width, initializer_range=width**-0.5)
    compare("bert", BertForMaskedLM(config), 5000, context, layers, width, heads)
sys.exit(wrong > 0)
