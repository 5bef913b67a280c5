#!/usr/bin/env python3
"""page_names.py ROOT: prints a C++ source that includes the one header for users, and names every class, alias and function that the pages for
users mention and Paceline's headers declare. It compiles against an installed tree if everything that the pages mention is installed."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
PAGES = ("README.md", "docs/checkpoints.md", "docs/data.md", "docs/data_parallel.md", "docs/diagnosis.md", "docs/model_parallelism.md",
         "docs/optimizers.md", "docs/sharding.md", "docs/surviving.md", "docs/tutorial.md")
# Folders inside the launcher and the engine. The pages use the names of some of their classes for other things.
INNER = {"coordination", "diagnosis", "hosts", "job", "messages", "output", "placement", "process", "ranks", "job_timeline", "transport"}
SPACES = ("data", "images", "models", "optim", "pipeline", "planning", "text", "train")


def declarations():
    """{(namespace, name)} of the declarations that begin a line in a namespace of a header."""
    found = set()
    for header in sorted((ROOT / "paceline").rglob("*.h")):
        if INNER.intersection(header.relative_to(ROOT).parts):
            continue
        spaces = [None]
        for line in header.read_text().splitlines():
            space = spaces[-1]
            if line.startswith("inline namespace"):
                spaces.append(space)
            elif match := re.match(r"namespace ([\w:]*) ?{", line):
                spaces.append(match[1] if match[1].startswith("paceline") else None)
            elif line.startswith("}  // namespace"):
                spaces.pop()
            elif space and (match := re.match(r"(?:class|struct|enum class|using|TORCH_MODULE\(|TORCH_MODULE_IMPL\()\s*(\w+)\b(?!::)(?!;)", line)):
                found.add((space, match[1]))
            elif space and (match := re.match(r"inline const.*?\b(k[A-Z]\w*)", line)):
                found.add((space, match[1]))
            elif space and (match := re.match(r"\w[\w:<>,&* ]*[ &*](\w+)\(", line)) and not line.startswith("TORCH_"):
                found.add((space, match[1]))
    return found


def mentioned(text):
    """Yields (namespace or None, name) for every name in code, that is, between backquotes or in a fence."""
    for code in re.findall(r"```cpp\n(.*?)```|`([^`\n]+)`", text, re.S):
        code = re.sub(r"//.*|\"[^\"\n]*\"", "", code[0] or code[1])
        for space, name in re.findall(r"(?<![\w:])(?:paceline::)?(?:(%s)::)?([A-Za-z]\w*)" % "|".join(SPACES), code):
            yield space or None, name


known = declarations()
names = set()
missing = []
for page in PAGES:
    for space, name in mentioned((ROOT / page).read_text()):
        if space:
            full = ("paceline::" + space, name)
            if full in known:
                names.add("::".join(full))
            else:
                missing.append(f"{page}: {space}::{name} is declared in no header")
        elif re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
            for owner in ("paceline", *("paceline::" + one for one in SPACES)):
                if (owner, name) in known:
                    names.add(f"{owner}::{name}")
if missing or len(names) < 50:
    sys.exit("\n".join(missing) or f"only {len(names)} names were found in the pages")
print("// Made by page_names.py.\n#include <paceline/paceline.h>\n")
for number, name in enumerate(sorted(names)):
    print(f"namespace n{number} {{\nusing {name};\n}}")
