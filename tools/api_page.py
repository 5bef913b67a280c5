#!/usr/bin/env python3
"""Prints docs/api.md: every public class and function of the headers that the wings' public headers include.

    tools/api_page.py > docs/api.md
    tools/api_page.py --check      prints a diff and exits with 1 if docs/api.md is out of date

Each line of the page has a declaration with the names of its parameters, and the first sentence of the comment above it.
"""
import difflib
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
DOORS = ("paceline/engine.h", "paceline/files.h", "paceline/launcher.h", "paceline/planning.h", "paceline/training.h")
# Included by those headers: the types that their functions take and return.
ALSO = ("paceline/engine/collectives/buffer.h", "paceline/engine/collectives/call.h",
        "paceline/engine/collectives/group/group_options.h", "paceline/engine/collectives/group/operations.h",
        "paceline/engine/collectives/selection/planner.h", "paceline/engine/collectives/work.h",
        "paceline/engine/core/dtype.h", "paceline/engine/rpc/call_error.h", "paceline/engine/rpc/directory.h",
        "paceline/engine/rpc/handlers.h", "paceline/engine/store/store.h", "paceline/engine/telemetry/phase_times.h",
        "paceline/engine/transport/link_options.h", "paceline/files/images/encoded_image.h",
        "paceline/files/images/image.h", "paceline/files/images/image_files.h",
        "paceline/files/images/image_pipeline.h", "paceline/training/optim/lr_scheduler.h",
        "paceline/training/optim/optimizer.h", "paceline/training/optim/optimizer_shards.h",
        "paceline/training/optim/rules/update_rules.h",
        "paceline/training/parallel/communication_hook.h", "paceline/training/remote/distributed_optimizer.h",
        "paceline/training/train/training_state.h")
INCLUDE = re.compile(r'^#include "(paceline/[^"]+)"', re.M)
WIDTH = 120
SHORT = 30  # letters of a sentence that says too little alone
OPENING = """# API

Every public class and function, a line each: the names of its parameters and the first sentence of the comment in its
header. The headers have the rest: costs, errors and thread safety. This page is made by `tools/api_page.py`; a test
compares it with the headers.

`#include <paceline/paceline.h>` is everything. Each wing has a header of its own; all but `training.h` do without
LibTorch. Collective calls are made by all ranks of a group, in the same order. Errors are thrown as `paceline::Error`
([errors.md](errors.md)).
"""


def headers():
    """(front door, its wing's headers in the order of their paths) for each wing."""
    for door in DOORS:
        paths = set(INCLUDE.findall((ROOT / door).read_text()))
        yield door, sorted(paths | {path for path in ALSO if path.startswith(door.removesuffix(".h") + "/")})


def sentence(comment):
    """The first sentence of a comment's lines; empty for none."""
    paragraph = comment[:comment.index("")] if "" in comment else comment
    sentences = re.split(r"(?<![.]\.)(?<!e\.g)\. ", " ".join(paragraph).strip())
    first = sentences[0]
    if len(first) < SHORT and len(sentences) > 1:  # "Collective."
        first += ". " + sentences[1]
    return first.rstrip(".:")


class Header:
    """Reads declarations: statements outside of function bodies, with the comment directly above each."""

    def __init__(self, path):
        self.lines = (ROOT / path).read_text().splitlines()
        self.opening = self.read_opening()
        self.entries = []  # (depth, kind, text, sentence)
        self.scopes = []  # (kind, name, is it public here)
        self.read()

    def read_opening(self):
        comment = []
        for line in self.lines[1:]:
            if line.startswith("//"):
                if line.strip() == "//":
                    break
                comment.append(line[2:].strip())
            elif comment or line.strip():
                break
        return sentence(comment)

    def is_visible(self):
        return all(kind == "namespace" or public for kind, _, public in self.scopes)

    def depth(self):
        return sum(kind != "namespace" for kind, _, _ in self.scopes)

    def read(self):
        comment, statement, depth = [], "", 0
        for line in self.lines:
            stripped = line.strip()
            if stripped.startswith("//"):
                if not statement:
                    comment.append(stripped[2:].strip())
                continue
            code = re.sub(r"\s//.*$", "", line).strip()
            if not code or code.startswith("#"):
                if not statement:
                    comment = []
                continue
            if not statement and re.fullmatch(r"(public|private|protected):", code):
                kind, name, _ = self.scopes[-1]
                self.scopes[-1] = (kind, name, code == "public:")
                comment = []
                continue
            statement += (" " if statement else "") + code
            while statement:
                end, depth = self.end_of(statement)
                if end is None:
                    break
                self.take(statement[:end + 1], comment)
                statement = statement[end + 1:].strip()
                comment = []

    def end_of(self, statement):
        """The index where a declaration ends: `;`, `}` of a scope, `{` of a namespace or class, or `}` of a body."""
        round_depth = brace_depth = opened = 0
        opens_scope = re.match(r"(template <[^{;]*> )?(namespace|class|struct|enum)\b[^;(=]*$", statement.split("{")[0])
        for i, letter in enumerate(statement):
            if letter in "([":
                round_depth += 1
            elif letter in ")]":
                round_depth -= 1
            elif round_depth:
                continue
            elif letter == "{":
                if opens_scope and brace_depth == 0:
                    return i, 0
                opened = opened if brace_depth else i
                brace_depth += 1
            elif letter == "}":
                if brace_depth == 0:
                    return i, 0
                brace_depth -= 1
                rest = statement[i + 1:].lstrip()
                is_body = re.search(r"\)[^;=]*$", statement[:opened])
                if brace_depth == 0 and is_body and not rest.startswith((",", "{", ";")):
                    return i, 0
            elif letter == ";" and brace_depth == 0:
                return i, 0
        return None, 0

    def take(self, text, comment):
        text = text.strip()
        if text.endswith("}") and "{" not in text:
            self.leave(text)
        elif text.endswith("{"):
            self.enter(text[:-1].strip(), comment)
        elif self.is_visible() and not (self.scopes and self.scopes[-1][0] == "enum") and text != ";":
            self.declare(text, comment)

    def leave(self, text):
        kind, name, _ = self.scopes.pop()
        if kind != "enum":
            return
        values = re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"=[^,}]*", "", text[:-1]))
        for i in range(len(self.entries) - 1, -1, -1):
            if self.entries[i][1] == "type" and self.entries[i][2] == f"enum {name}":
                depth, kind, label, about = self.entries[i]
                listed = ", ".join(f"`{value}`" for value in values)
                self.entries[i] = (depth, kind, label, f"{about}: {listed}" if about else listed)
                return

    def enter(self, text, comment):
        text = re.sub(r"^template <.*?> ", "", text)
        match = re.match(r"(namespace|class|struct|enum(?: class)?)\s*([\w:]*)", text)
        kind, name = match.group(1).split()[0], match.group(2)
        if kind == "namespace":
            hidden = not name or "internal" in name
            self.scopes.append(("namespace" if not hidden else "hidden", name, not hidden))
            return
        if self.is_visible() and name:
            self.entries.append((self.depth(), "type", f"{kind} {name}", sentence(comment)))
        self.scopes.append((kind, name, kind != "class"))

    def declare(self, text, comment):
        about = sentence(comment)
        module = re.match(r"TORCH_MODULE(?:_IMPL)?\((\w+)(?:, ([^)]+))?\)", text)
        if module:
            self.entries.append((self.depth(), "type", f"class {module.group(1)}",
                                 f"LibTorch's holder of `{module.group(2) or module.group(1) + 'Impl'}`"))
        if re.match(r"(using|friend|static_assert|TORCH_MODULE(_IMPL)?|extern template)\b", text) or "= delete" in text:
            return
        if re.match(r"(template <.*?> )?(class|struct|enum)\b[^{(]*;$", text):
            return  # declared, not defined
        found = self.function(text)
        if found:
            name, label = found
            if name.startswith(("~", "operator=")) or text.endswith("= default;"):
                return
            if not about and name.endswith("_async"):
                about = f"the asynchronous form of `{name[:-len('_async')]}`"
            self.entries.append((self.depth(), "function", label, about))
        elif "constexpr" in text and self.depth() == 0:
            name = re.search(r"(\w+)(\[\])?\s*(=|\{)", text)
            if name:
                self.entries.append((0, "constant", name.group(1), about))
        elif self.scopes and self.scopes[-1][0] == "struct":
            self.add_fields(text)

    def add_fields(self, text):
        """Names the fields of a declaration in the line of their struct."""
        declarators = split_top(re.sub(r"\{[^}]*\}", "", text.rstrip(";")))
        names = [f"`{parameter_name(declarator)}`" for declarator in declarators]
        for i in range(len(self.entries) - 1, -1, -1):
            depth, kind, label, about = self.entries[i]
            if label == f"struct {self.scopes[-1][1]}":
                begun = re.search(r"(^|\. )Fields: [^.]*$", about)
                lead = about + ", " if begun else (about + ". " if about else "") + "Fields: "
                self.entries[i] = (depth, kind, label, lead + ", ".join(names))
                return

    def function(self, text):
        """(name, `name(parameters) -> type`) of a declared or defined function; None for anything else."""
        flat = re.sub(r"^template <", "", text)
        if flat != text:
            flat = after_angle(flat)
        flat = flat.replace("decltype(auto)", "auto")
        if flat.startswith("requires("):
            flat = closing(flat[len("requires("):])[1].strip()
        flat = re.sub(r"\b(inline|static|constexpr|explicit|virtual|friend)\s+|\[\[\w+\]\]\s*", "", flat)
        match = re.match(r"([^(=]*?)(operator\s*(?:\(\)|[^\s(]+)|~?\w+)\s*\(", flat)
        if not match or re.match(r"std::function", match.group(1).strip()):
            return None
        inside, rest = closing(flat[match.end():])
        if rest.lstrip().startswith("->"):
            return None  # a deduction guide
        result, name = match.group(1).strip(), match.group(2)
        parameters = [parameter_name(part) for part in split_top(inside)]
        label = f"{name}({', '.join(filter(None, parameters))})"
        if result and result != "void":
            label += f" -> {result}"
        return name, label


def after_angle(text):
    depth = 1
    for i, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0:
            return text[i + 1:].strip()
    return text


def closing(text):
    """(what stands before the parenthesis that closes, what follows it)"""
    depth = 1
    for i, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return text[:i], text[i + 1:]
    return text, ""


def split_top(text):
    parts, depth, last = [], 0, 0
    for i, letter in enumerate(text):
        depth += {"(": 1, "<": 1, "{": 1, "[": 1, ")": -1, ">": -1, "}": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[last:i])
            last = i + 1
    return [part.strip() for part in parts + [text[last:]] if part.strip()]


def parameter_name(text):
    text = re.sub(r"\s*=.*$", "", text, flags=re.S)
    words = re.findall(r"\w+", re.sub(r"<.*>", "", text))
    return words[-1] if words else ""


def wrapped(indent, text):
    lead = "  " * indent
    return textwrap.fill(text, WIDTH, initial_indent=lead + "- ", subsequent_indent=lead + "  ",
                         break_long_words=False, break_on_hyphens=False)


def page():
    lines = [OPENING.rstrip()]
    for door, paths in headers():
        lines += ["", f"## {door}"]
        for path in paths:
            header = Header(path)
            name = path[len("paceline/"):]
            lines += ["", f"### [{name}](../{path})", ""]
            if header.opening:
                lines += textwrap.wrap(header.opening + ".", WIDTH, break_long_words=False, break_on_hyphens=False) + [""]
            for depth, _, label, about in header.entries:
                lines.append(wrapped(depth, f"`{label}`" + (f": {about}" if about else "")))
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def main():
    text = page()
    if sys.argv[1:] == ["--check"]:
        difference = list(difflib.unified_diff(PAGE.read_text().splitlines(), text.splitlines(), "docs/api.md",
                                               "what the headers have", lineterm="", n=0))
        if difference:
            print("\n".join(difference))
            print("api_page: run tools/api_page.py > docs/api.md")
            return 1
        print(f"api_page: docs/api.md has the {text.count('### ')} headers as they are")
        return 0
    if sys.argv[1:]:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
