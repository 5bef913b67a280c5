#!/usr/bin/env python3
"""prepare.py FOLDER SITE: makes the sources of the site in FOLDER, for `mkdocs build -f FOLDER/mkdocs.yml`, which writes SITE.

The pages are those of docs/, in the order of ORDER; a page that is not in ORDER follows the others. Pages, sources and folders outside of
docs/ to which a page links become pages as well, so that the site needs neither the repository nor a network. Each public header
becomes a page with its declarations, one line each, and its text. Fails if a link leads nowhere.
"""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import api_page  # noqa: E402

ORDER = """README install tutorial tutorial.zh-CN recipes data optimizers data_parallel sharding model_parallelism checkpoints tables rpc
  launching surviving diagnosis mistakes performance network architecture glossary api""".split()
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".sh": "bash", ".cmake": "cmake", ".txt": "cmake", ".json": "json", ".yml": "yaml"}
LINK = re.compile(r"(!?\[[^\[\]]*\])\(([^)\s]+)((?:\s+\"[^\"]*\")?)\)")


class Site:
    """Copies pages and what they link to, each once."""

    def __init__(self, folder):
        self.folder = folder
        self.done = {}  # path in the repository: path on the site
        self.waiting = []
        self.missing = []
        self.headers = {path: (header, names) for _, found in api_page.headers() for path, header, names in found}

    def place(self, path):
        """The path on the site of a file or folder of the repository, which is made later if it is new."""
        if path not in self.done:
            if path.startswith("docs/"):
                place = path[len("docs/"):]
            elif path in self.headers:
                place = f"api/{path}.md"
            elif path.endswith(".md"):
                place = f"repository/{path}"
            elif (ROOT / path).is_dir():
                place = f"repository/{path}/files.md"
            else:
                place = f"repository/{path}.md"
            self.done[path] = place
            self.waiting.append(path)
        return self.done[path]

    def rewritten(self, text, path):
        """The page's text with links to places on the site; blocks of code stay."""
        def one(match):
            target, _, anchor = match[2].partition("#")
            if not target or re.match(r"[a-z]+:", target):
                return match[0]
            found = os.path.normpath(os.path.join(os.path.dirname(path), target))
            if not (ROOT / found).exists():
                self.missing.append(f"{path} links to {match[2]}, which does not exist")
                return match[0]
            place = os.path.relpath(self.place(found), os.path.dirname(self.done[path]))
            return f"{match[1]}({place}{'#' + anchor if anchor else ''}{match[3]})"

        # In a table GitHub needs a backslash before a bar in code, which the site would show.
        text = re.sub(r"^\|.*$", lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.M)
        parts = re.split(r"(^ *```.*?^ *```)", text, flags=re.M | re.S)
        return "".join(part if part.lstrip().startswith("```") else LINK.sub(one, part) for part in parts)

    def write(self, place, text):
        path = self.folder / "docs" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make(self, path):
        place, source = self.done[path], ROOT / path
        if path in self.headers:
            self.write(place, header_page(path, *self.headers[path]))
        elif source.is_dir():
            files = sorted(file.relative_to(ROOT).as_posix() for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc")
            here = os.path.dirname(place)
            lines = [f"- [{name[len(path) + 1:]}]({os.path.relpath(self.place(name), here)})" for name in files if is_text(ROOT / name)]
            self.write(place, f"# {path}\n\n" + "\n".join(lines) + "\n")
        elif path == "docs/api.md":  # lists in lists need four columns here, two on GitHub
            self.write(place, self.rewritten(re.sub(r"^ +", lambda match: match[0] * 2, source.read_text(), flags=re.M), path))
        elif path.endswith(".md"):
            self.write(place, self.rewritten(source.read_text(), path))
        elif source.suffix in (".svg", ".png"):
            self.done[path] = place.removesuffix(".md")
            target = self.folder / "docs" / self.done[path]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
        else:
            language = LANGUAGES.get(source.suffix, "text")
            self.write(place, f"# {path}\n\n{fenced(source.read_text(), language)}\n")


def is_text(path):
    return b"\0" not in path.read_bytes()[:4096]


def fenced(text, language):
    """A block of code; four backquotes, because comments may show three."""
    return f"````{language}\n{text.rstrip()}\n````"


def header_page(path, header, names):
    """The declarations of these names in a header, a line each, and its text with all comments."""
    lines = [f"# {path[len('paceline/'):]}", ""]
    if header.opening:
        lines += [header.opening + ".", ""]
    for depth, _, label, about, name in header.entries:
        if name in names:
            lines.append("    " * depth + f"- `{label}`" + (f": {about}" if about else ""))
    return "\n".join([*lines, "", "## The header", "", fenced((ROOT / path).read_text(), "cpp"), ""])


def title(path):
    return re.search(r"^# (.*)$", path.read_text(), re.M)[1]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, target = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    site = Site(folder)
    pages = {path.stem: path for path in (ROOT / "docs").glob("*.md")}
    names = [name for name in ORDER if name in pages] + sorted(set(pages) - set(ORDER))
    for name in names:
        site.place(f"docs/{name}.md")
    for path in sorted(site.headers):
        site.place(path)
    while site.waiting:
        site.make(site.waiting.pop())
    settings = (pathlib.Path(__file__).parent / "mkdocs.yml").read_text().replace("THEME", str(pathlib.Path(__file__).resolve().parent / "theme"))
    nav = "".join(f"  - '{'Overview' if name == 'README' else title(pages[name])}': {name}.md\n" for name in names)
    (folder / "mkdocs.yml").write_text(f"{settings}docs_dir: {folder}/docs\nsite_dir: {target}\nnav:\n{nav}")
    for name in ("site.css", "offline_search.js"):
        site.write(name, (pathlib.Path(__file__).parent / name).read_text())
    site.write("search_index.js", "")  # after the build it has the index
    if site.missing:
        sys.exit("\n".join(site.missing))
    print(f"prepare: {len(names)} pages, {len(site.headers)} headers, {len(site.done) - len(names) - len(site.headers)} other files")


main()
