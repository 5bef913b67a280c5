#!/usr/bin/env python3
"""unicode_classes_test.py TOKENIZE: compares the classes and the plain lower case of all Unicode characters with Python's unicodedata:

    letter, number   \\p{L} and \\p{N} of GPT-2's regular expression
    space            \\s of that expression, Unicode's White_Space: str.isspace() without U+001C to U+001F, which are space only for Python's re
    punctuation      category P, for BERT
    control          Cc, Cf and Co, which BERT removes
    accent           Mn
    lower case       NFD of str.lower() without accents, as in BERT

If the module regex is installed, whose \\s GPT-2's encoder.py uses, spaces are compared with it too. Characters that this Python's Unicode does
not have are not compared."""
import subprocess
import sys
import unicodedata

output = subprocess.run([sys.argv[1], "classes"], stdout=subprocess.PIPE, check=True).stdout.decode()
digits, *lines = output.split("\n")[:-1]
lower = {}
for line in lines:
    code, _, text = line.partition(" ")
    lower[int(code, 16)] = text
names = ("letter", "number", "space", "punctuation", "control", "accent")
try:
    import regex
except ImportError:
    regex = None


def classes(character):
    category = unicodedata.category(character)
    space = character.isspace() and not "\x1c" <= character <= "\x1f"
    if regex:
        assert space == bool(regex.fullmatch(r"\s", character)), hex(ord(character))
    return category[0] == "L", category[0] == "N", space, category[0] == "P", category in ("Cc", "Cf", "Co"), category == "Mn"


def plain_lower(character):
    return "".join(c for c in unicodedata.normalize("NFD", character.lower()) if unicodedata.category(c) != "Mn")


wrong = compared = 0
for code in range(0x110000):
    character = chr(code)
    if 0xD800 <= code < 0xE000 or unicodedata.category(character) == "Cn":
        continue
    compared += 1
    mask = int(digits[2 * code:2 * code + 2], 16)
    differ = [name for bit, (name, is_one) in enumerate(zip(names, classes(character))) if is_one != bool(mask >> bit & 1)]
    if character != "\n" and lower.get(code, character) != plain_lower(character):
        differ.append(f"lower case {lower.get(code, character)!r} where {plain_lower(character)!r} is wanted")
    if differ:
        wrong += 1
        print(f"U+{code:04X} ({unicodedata.category(character)}):", ", ".join(differ))
print(f"{compared} characters of Unicode {unicodedata.unidata_version} compared, {wrong} differ")
sys.exit(wrong > 0 or compared < 280000)
