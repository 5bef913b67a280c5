#!/usr/bin/env python3
"""Compares this project's tokenizers with Hugging Face's on a text, line by line, and on random characters.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers
    /tmp/venv/bin/python tests/files/text/beside_hugging_face.py build/dev/tests/files/text/tokenize README.md docs/*.md

It trains vocabularies on the given files. Run by hand, because Debian does not have the package tokenizers.
"""
import random
import subprocess
import sys
import tempfile

from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer

program, files = sys.argv[1], sys.argv[2:]
folder = tempfile.mkdtemp()
texts = []
for name in files:
    with open(name, encoding="utf-8") as file:
        texts += [line for line in file.read().split("\n") if line]
draw = random.Random(1)
RANGES = [(1, 0x7F), (0x80, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x1E00, 0x20CF), (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0x1F600, 0x1F64F)]
for _ in range(20000):
    ranges = draw.sample(RANGES, draw.randint(1, 3))
    characters = (chr(draw.randint(*draw.choice(ranges))) for _ in range(draw.randint(1, 40)))
    # punctuation only since Unicode 14, which one side may not know
    texts.append("".join(c for c in characters if c != "\u061d"))


def ours(*arguments):
    output = subprocess.run([program, *arguments], input="\0".join(texts).encode() + b"\0", stdout=subprocess.PIPE, check=True).stdout
    return [[int(word) for word in line.split()] for line in output.decode().split("\n")[:-1]]


def compare(name, mine, theirs):
    wrong = [i for i in range(len(texts)) if mine[i] != theirs[i]]
    for i in wrong[:10]:
        print(f"{name}: {texts[i]!r}: {mine[i]} where {theirs[i]} is wanted")
    print(f"{name}: {len(wrong)} of {len(texts)} texts differ, {sum(map(len, theirs))} tokens")
    return len(wrong)


bpe = ByteLevelBPETokenizer()
bpe.train(files, vocab_size=3000, show_progress=False)
bpe.save_model(folder)
differ = compare("bpe", ours("bpe", f"{folder}/vocab.json", f"{folder}/merges.txt"), [bpe.encode(text).ids for text in texts])
for lower in (True, False):
    pieces = BertWordPieceTokenizer(lowercase=lower)
    pieces.train(files, vocab_size=3000, show_progress=False)
    pieces.save_model(folder)
    name = "word-piece, " + ("lower case" if lower else "cased")
    differ += compare(name, ours("word-piece", f"{folder}/vocab.txt", *([] if lower else ["cased"])),
                      [pieces.encode(text, add_special_tokens=False).ids for text in texts])
sys.exit(differ > 0)
