#!/usr/bin/env python3
"""translations_test.py ROOT: a page in Chinese has the same commands and code as the English one, in the same order; comments may differ."""
import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])


def blocks(page):
    """The lines of all blocks of code, without comments."""
    found = re.findall(r"^```.*?^```", (ROOT / page).read_text(), re.M | re.S)
    return [re.sub(r"\s+(#|//) .*$", "", line) for block in found for line in block.split("\n")]


different = 0
for page in ("README.md", "docs/tutorial.md"):
    translated = page.replace(".md", ".zh-CN.md")
    difference = list(difflib.unified_diff(blocks(page), blocks(translated), page, translated, lineterm="", n=0))
    print("\n".join(difference) or f"translations: {translated} has the code of {page}")
    different += bool(difference)
sys.exit(different > 0)
