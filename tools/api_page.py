#!/usr/bin/env python3
"""Prints docs/api.md: every public class and function of the headers that the wings' public headers include, and every
other type that a public declaration on the page names, wherever it is defined.

    tools/api_page.py > docs/api.md
    tools/api_page.py --check      prints a diff and exits with 1 if docs/api.md is out of date; also exits with 1 if the
                                   page has too many names, or if an installed header has a name that is neither on the
                                   page nor in a namespace `detail`
    tools/api_page.py --count      prints how many names the page lists; overloads are one name

A section of a class that begins with `public:  // internal` is for the library's own rooms, and is not on the page.

Each line of the page has a declaration with the names of its parameters, and the first sentence of the comment above it.
The fields of a struct are shown with their types and defaults, and with the comment above or behind them.
"""
import difflib
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
DOORS = ("paceline/engine.h", "paceline/files.h", "paceline/launcher.h", "paceline/planning.h", "paceline/training.h")
INCLUDE = re.compile(r'^#include "(paceline/[^"]+)"', re.M)
WIDTH = 120
SHORT = 30  # letters of a sentence that says too little alone
MOST_NAMES = 300  # --check fails above it (issue 30)
OPENING = """# API

Every public class and function, a line each: the names of its parameters and the first sentence of the comment in its
header. Fields have their types and defaults; without one, a field is empty, or must be given. The headers have the
rest: costs, errors and thread safety. This page is made by `tools/api_page.py`; a test compares it with the headers.
Every type in a public declaration is on the page.

`#include <paceline/paceline.h>` is everything. Each wing has a header of its own; all but `training.h` do without
LibTorch. Collective calls are made by all ranks of a group, in the same order. Errors are thrown as `paceline::Error`
([Errors](diagnosis.md#errors)).
"""


def included(path, cache):
    """All headers that a header includes, directly or not, and the header itself."""
    if path not in cache:
        cache[path] = found = {path}
        for other in INCLUDE.findall((ROOT / path).read_text()):
            found |= included(other, cache)
    return cache[path]


def installed():
    """The paths of all headers that the doors include, directly or not: those that cmake/PacelineInstall.cmake installs."""
    cache = {}
    return set().union(*(included(door, cache) for door in DOORS)) - set(DOORS)


def unlisted():
    """[(path, names)]: the types, functions and constants of installed headers that are neither on the page nor in a
    namespace `detail`. A private member of a public class is what brings most of them: put it behind a pointer."""
    listed = {path: names for _, paths in headers() for path, _, names in paths}
    for path in sorted(installed()):
        header = Header(path)
        names = {item for depth, _, _, _, item in header.entries if depth == 0} - listed.get(path, set())
        if names:
            yield path, sorted(names)


def headers():
    """(front door, [(path, Header, the names of its items on the page)]) for each wing, in the order of the paths.

    A header that a door includes is listed whole. Of any other header only the types are listed that a declaration on
    the page names, so the page is complete by construction."""
    cache, read, listed, open_items = {}, {}, {}, []
    doors = {door: INCLUDE.findall((ROOT / door).read_text()) for door in DOORS}
    for path in installed():
        read[path] = Header(path)
    home = {}  # a type's name: the headers that define it
    for path, header in read.items():
        for name in header.types:
            home.setdefault(name, set()).add(path)

    def list_item(path, name):
        if name not in listed.setdefault(path, set()):
            listed[path].add(name)
            open_items.append((path, name))

    for paths in doors.values():
        for path in paths:
            for _, _, _, _, name in read[path].entries:
                list_item(path, name)
    while open_items:
        path, item = open_items.pop()
        for name in read[path].references.get(item, ()):
            for other in home.get(name, set()) & included(path, cache):
                list_item(other, name)
    for door in DOORS:
        wing = door.removesuffix(".h") + "/"
        yield door, [(path, read[path], listed[path]) for path in sorted(listed)
                     if path.startswith(wing) and any(entry[4] in listed[path] for entry in read[path].entries)]


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
        self.entries = []  # (depth, kind, text, sentence, name of the outermost declaration)
        self.types = set()  # names of the outermost types
        self.references = {}  # by the name of the outermost declaration: names in its public declarations
        self.scopes = []  # (kind, name, is it public here)
        self.held = {}  # a class: LibTorch's holder of it, which users name
        self.namespaces = {}  # of the outermost declarations, by their names
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

    def outermost(self, name):
        """The outermost type around a declaration, or the declaration's own name."""
        types = [scope for kind, scope, _ in self.scopes if kind != "namespace"]
        return types[0] if types else name

    def add(self, depth, kind, label, about, name):
        if depth == 0:
            self.namespaces[name] = "::".join(scope for kind, scope, _ in self.scopes if kind == "namespace")
        self.entries.append((depth, kind, label, about, self.outermost(name)))

    def refer(self, name, text):
        self.references.setdefault(self.outermost(name), set()).update(re.findall(r"\b[A-Z]\w+", text))

    def read(self):
        comment, statement, depth = [], "", 0
        behind, column = [], -1  # the comment behind a declaration, and where it begins
        for line in self.lines:
            stripped = line.strip()
            if stripped.startswith("//") and line.index("//") == column:
                behind.append(stripped[2:].strip())
                continue
            column = -1
            if stripped.startswith("//"):
                if not statement:
                    comment.append(stripped[2:].strip())
                continue
            internal = re.fullmatch(r"public:\s*// internal", stripped)
            code = re.sub(r"\s//.*$", "", line).strip()
            if not code or code.startswith("#"):
                if not statement:
                    comment = []
                continue
            if not statement and re.fullmatch(r"(public|private|protected):", code):
                kind, name, _ = self.scopes[-1]
                self.scopes[-1] = (kind, name, code == "public:" and not internal)
                comment = []
                continue
            found = re.search(r"\s//(.*)$", line)
            if found:
                behind, column = [found.group(1).strip()], found.start() + 1
            statement += (" " if statement else "") + code
            while statement:
                end, depth = self.end_of(statement)
                if end is None:
                    break
                self.take(statement[:end + 1], comment, behind if found else [])
                statement = statement[end + 1:].strip()
                comment = []
        self.entries = [(depth, kind, label, sentence(about) if kind == "field" else about, item)
                        for depth, kind, label, about, item in self.entries]

    def end_of(self, statement):
        """The index where a declaration ends: `;`, `}` of a scope, `{` of a namespace or class, or `}` of a body."""
        round_depth = brace_depth = opened = 0
        opens_scope = re.match(r"(template <[^{;]*> )?((?:inline )?namespace|class|struct|enum)\b[^;(=]*$", statement.split("{")[0])
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

    def take(self, text, comment, behind):
        text = text.strip()
        if text.endswith("}") and "{" not in text:
            self.leave(text)
        elif text.endswith("{"):
            self.enter(text[:-1].strip(), comment)
        elif self.is_visible() and not (self.scopes and self.scopes[-1][0] == "enum") and text != ";":
            self.declare(text, comment, behind)

    def leave(self, text):
        kind, name, _ = self.scopes.pop()
        if kind != "enum":
            return
        values = re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"=[^,}]*", "", text[:-1]))
        for i in range(len(self.entries) - 1, -1, -1):
            if self.entries[i][1] == "type" and self.entries[i][2] == f"enum {name}":
                depth, kind, label, about, item = self.entries[i]
                listed = ", ".join(f"`{value}`" for value in values)
                self.entries[i] = (depth, kind, label, f"{about}: {listed}" if about else listed, item)
                return

    def enter(self, text, comment):
        if re.match(r"template <(> |.*\b(struct|class) \w+<)", text):  # a specialisation: not a name of its own
            self.scopes.append(("hidden", "", False))
            return
        if text.startswith("template <"):
            text = after_angle(text[len("template <"):])
        match = re.search(r"\b(namespace|class|struct|enum(?: class)?)\s*([\w:]*)", text)
        kind, name = match.group(1).split()[0], match.group(2)
        if kind == "namespace":
            hidden = not name or "internal" in name or "detail" in name
            self.scopes.append(("namespace" if not hidden else "hidden", name, not hidden))
            return
        holder = re.search(r": public torch::nn::ModuleHolder<(\w+)>", text)
        if holder and self.is_visible():
            self.hold(name, holder.group(1))  # the page lists what it holds under its name
        elif self.is_visible() and name:
            self.add(self.depth(), "type", f"{kind} {name}", sentence(comment), name)
            self.refer(name, text)
            if self.depth() == 0:
                self.types.add(name)
        self.scopes.append((kind, name, kind != "class"))

    def declare(self, text, comment, behind):
        about = sentence(comment)
        module = re.match(r"TORCH_MODULE(?:_IMPL)?\((\w+)(?:, ([^)]+))?\)", text)
        if module:
            held = module.group(2) or module.group(1) + "Impl"
            self.hold(module.group(1), held)
        alias = re.match(r"(?:template <.*?> )?using (\w+) =", text)
        if alias:
            self.refer(alias.group(1), text)
            if self.depth() == 0:
                self.types.add(alias.group(1))
        if re.match(r"(using|friend|static_assert|TORCH_MODULE(_IMPL)?|extern template)\b", text) or "= delete" in text:
            return
        if re.match(r"(template <.*?> )?(class|struct|enum)\b[^{(]*;$", text):
            return  # declared, not defined
        found = self.function(text)
        if found:
            name, label, signature = found
            if name.startswith(("~", "operator=")) or text.endswith("= default;"):
                return
            if name.startswith("operator") and self.depth() == 0:
                return  # belongs to the types that it works on
            if not about and name.endswith("_async"):
                about = f"the asynchronous form of `{name[:-len('_async')]}`"
            self.add(self.depth(), "function", label, about, name)
            self.refer(name, signature)
        elif "constexpr" in text and self.depth() == 0:
            name = re.search(r"(\w+)(\[\])?\s*(=|\{)", text)
            if name:
                self.add(0, "constant", name.group(1), about, name.group(1))
        elif self.scopes and self.scopes[-1][0] == "struct":
            self.add_fields(text, comment or behind)

    def hold(self, name, held):
        """Lists a holder of LibTorch (TORCH_MODULE) in the place of the class that it holds, with that class's functions."""
        impl = re.sub(r"<.*", "", held)
        about = ""
        for i, (depth, kind, label, said, item) in enumerate(self.entries):
            if item == impl:
                about = said if label == f"class {impl}" else about
                label = f"class {name}" if label == f"class {impl}" else re.sub(rf"^{impl}\(", f"{name}(", label)
                self.entries[i] = (depth, kind, label, said, name)
        if not any(entry[2] == f"class {name}" for entry in self.entries):
            self.add(self.depth(), "type", f"class {name}", f"LibTorch's holder of `{held}`", name)
        self.references.setdefault(name, set()).update(self.references.get(impl, set()) - {impl})
        self.types.discard(impl)
        self.types.add(name)
        self.held[impl] = name

    def add_fields(self, text, comment):
        """Lists a declaration of fields with their types and defaults. The lines of `comment` may still follow."""
        self.refer("", text)
        label = re.sub(r"\b(static|constexpr|inline|mutable) ", "", text.rstrip(";"))
        label = re.sub(r" = \{\}|^([^=]*)\{\}$", r"\1", label)
        self.add(self.depth(), "field", label, comment, "")

    def function(self, text):
        """(name, `name(parameters) -> type`, the text with its types) of a declared or defined function; None for anything else."""
        flat = re.sub(r"^template <", "", text)
        if flat != text:
            flat = after_angle(flat)
        flat = without_decltypes(flat.replace("decltype(auto)", "auto"))
        flat = after_requires(flat)
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
        if "decltype" in result:  # too long to print
            result = re.sub(r"<.*>", "<…>", result) if "<" in result else "auto"
        if result and result != "void":
            label += f" -> {result}"
        return name, label, result + " " + inside


def after_angle(text):
    depth = 1
    for i, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0:
            return text[i + 1:].strip()
    return text


def after_requires(text):
    """The text after the requires clause at the beginning: parenthesised conditions, requires expressions and names with
    arguments, joined by && or ||."""
    clause = re.match(r"requires\b\s*", text)
    while clause:
        text = text[clause.end():]
        expression = re.match(r"requires\b[^{]*", text)
        if expression:
            text = after_brace(text[expression.end():])
        elif text.startswith("("):
            text = closing(text[1:])[1]
        else:
            text = text[re.match(r"!?[\w:]*", text).end():]
            text = after_angle(text[1:]) if text.startswith("<") else text
        text = text.strip()
        clause = re.match(r"(&&|\|\|)\s*", text)
    return text


def after_brace(text):
    depth = 0
    for i, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            return text[i + 1:]
    return text


def without_decltypes(text):
    """Leaves out the arguments of decltype, whose parentheses would look like those of the function."""
    while found := re.search(r"\bdecltype\(", text):
        text = text[:found.end() - 1] + closing(text[found.end():])[1]
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


def namespaces_of(header, listed):
    """"In `paceline::data`", or the namespaces with the names in each."""
    names = {}
    for depth, _, _, _, item in header.entries:
        if depth == 0 and item in listed:
            space = header.namespaces.get(item) or header.namespaces.get(f"{item}Impl")  # of a holder
            if space and item not in names.setdefault(space, []):
                names[space].append(item)
    if len(names) == 1:
        return f"In `{next(iter(names))}`."
    return "In " + "; in ".join(f"`{space}`: {', '.join(f'`{name}`' for name in of)}" for space, of in names.items()) + "."


def page():
    lines = [OPENING.rstrip()]
    for door, paths in headers():
        lines += ["", f"## {door}"]
        for path, header, listed in paths:
            name = path[len("paceline/"):]
            lines += ["", f"### [{name}](../{path})", ""]
            opening = (header.opening + ". " if header.opening else "") + namespaces_of(header, listed)
            lines += textwrap.wrap(opening, WIDTH, break_long_words=False, break_on_hyphens=False) + [""]
            for depth, _, label, about, item in header.entries:
                if item in listed:
                    lines.append(wrapped(depth, f"`{label}`" + (f": {about}" if about else "")))
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def count():
    """The number of names on the page, with their namespaces; overloads, also those of two headers, are one name."""
    return len({(header.namespaces.get(item), item) for _, paths in headers() for _, header, listed in paths
                for depth, _, _, _, item in header.entries if depth == 0 and item in listed})


def main():
    text = page()
    if sys.argv[1:] == ["--count"]:
        print(count())
        return 0
    if sys.argv[1:] == ["--check"]:
        difference = list(difflib.unified_diff(PAGE.read_text().splitlines(), text.splitlines(), "docs/api.md",
                                               "what the headers have", lineterm="", n=0))
        if difference:
            print("\n".join(difference))
            print("api_page: run tools/api_page.py > docs/api.md")
            return 1
        names = count()
        if names > MOST_NAMES:
            print(f"api_page: {names} names are public, and at most {MOST_NAMES} may be: put those that users do not need into a header of "
                  "their own, which no public header includes")
            return 1
        others = list(unlisted())
        for path, hidden in others:
            print(f"api_page: {path} is installed, but these names are not on the page: {', '.join(hidden)}. Put them into a namespace "
                  "`detail`, or into a header that no installed header includes")
        if others:
            return 1
        print(f"api_page: docs/api.md has the {text.count('### ')} headers as they are, with {names} names")
        return 0
    if sys.argv[1:]:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
