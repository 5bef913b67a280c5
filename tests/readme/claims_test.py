#!/usr/bin/env python3
"""claims_test.py ROOT: the pages' claims about the sources are true, as far as a text shows it.

- paceline/THREADS.md names exactly the threads that the library starts, the sources that install signal handlers, those that detach threads,
  those with process-wide state (including the launcher's and the command's), and those that change the process in other ways.
- docs/architecture.md names the rooms that use a library; fmt, spdlog and nlohmann stay out of public headers.
- CONTRIBUTING.md lists the labels of tests.
- The pages of formats have the sizes that the sources assert.
- Every mutex has a comment about what it guards.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
LIBRARY = re.compile(r"paceline/(engine|files|planning|training)/")
everything = {path.relative_to(ROOT).as_posix(): path.read_text()
              for folder in ("paceline", "apps") for ending in ("h", "cpp") for path in (ROOT / folder).rglob("*." + ending)}
sources = {path: text for path, text in everything.items() if LIBRARY.match(path) and path.endswith(".cpp")}
page = (ROOT / "paceline/THREADS.md").read_text()
found = []


def compare(what, of_page, of_sources, least=3):
    for name in sorted(of_page - of_sources):
        found.append(f"{what}: the page names {name}, which no source has")
    for name in sorted(of_sources - of_page):
        found.append(f"{what}: the page does not name {name}")
    if len(of_sources) < least:
        found.append(f"{what}: only {len(of_sources)} were found in the sources, so this test looks for the wrong text")


def part(title, text=page):
    """The text after the bold title, up to the next one."""
    match = re.search(rf"^\*\*{re.escape(title)}\*\*(.*?)(?=^\*\*|\Z)", text, re.M | re.S)
    if not match:
        found.append(f"the page has no part **{title}**")
    return match[1] if match else ""


def compare_files(what, text, paths):
    """Compares with the sources that `text` names; only the last folder and the name count."""
    names = {"/".join(path.split("/")[-2:]) for path in paths}
    compare(what, set(re.findall(r"`(?:[a-z_0-9]+/)*([a-z_0-9]+/[a-z_0-9]+\.(?:h|cpp))`", text)), names)


def is_variable(line):
    """Whether the line, without its comment, declares a variable that outlives its function and can change, or a part of one."""
    code = line.split("//")[0].rstrip()
    if not code.endswith((";", "{", "=", "[] {")) or re.search(r"\b(constexpr|static_assert|extern template|using)\b", code):
        return False
    head = re.split(r" = |[{;[]| =$", code)[0].rstrip()
    while "<" in head and (plain := re.sub(r"<[^<>]*>", "", head)) != head:
        head = plain
    if "(" in head or ">" in head or re.search(r"\b(return|namespace|class|enum|typedef|union|template|friend|concept|else|case)\b", head):
        return False
    is_constant = re.search(r"\bconst\b", head.split("*")[0]) and ("*" not in head or re.search(r"\*\s*const \w+$", head))
    if re.match(r"\s*(static |inline |constinit )*(static|thread_local) ", head):
        return not is_constant
    return not is_constant and bool(re.match(r"(inline |constinit |volatile |struct )*[A-Za-z_][\w:]*\**&? [*&]?[a-z]\w*$", head)) \
        and not re.match(r"struct \w+$", head)


started = "\n".join(sources.values()) + everything["paceline/launcher/spawn/spawn.cpp"]
names = set(re.findall(r'start_thread\(\s*"([^"]+)"', started)) | set(re.findall(r'"(paceline-(?:oneccl|nccl))"', started))
compare("threads", set(re.findall(r"^\| `([\w-]+)` \|", part("Why there are few."), re.M)), {"rank-N" if name == "rank-" else name for name in names})
compare_files("handlers", part("Signals."), {path for path, text in sources.items() if re.search(r"sigaction\([^,]+, &", text)})
compare_files("detached threads", part("Joined or left."),
              {path for path, text in sources.items() if re.search(r"[Tt]hread(_|s_)?\)?\.detach\(\)", text)})
compare_files("state of the process", part("State of the process."),
              {path for path, text in everything.items() if any(map(is_variable, text.split("\n")))})
CHANGES = re.compile(r"\b(setenv|unsetenv|atexit|set_terminate|sigaltstack|SetCPUAllocator|addGlobalCallback|at::set_num_threads|PR_SET_PTRACER)\b(?=[(,])")
compare_files("changes of the process", part("Changes of the process."),
              {path for path, text in sources.items() if any(CHANGES.search(line.split("//")[0]) for line in text.split("\n"))})

mutexes = [(path, number, line) for path, text in everything.items() for number, line in enumerate(text.split("\n"), 1)
           if re.match(r"\s*(static |mutable )*std::(recursive_|shared_|timed_)?mutex \w+;", line)]
compare("mutexes", set(), {f"{path}:{number}: it does not say what it guards" for path, number, line in mutexes
                           if not re.search(r"// .*\b(guards|held|at a time)\b", line)}, least=0)
if len(mutexes) < 30:
    found.append(f"mutexes: only {len(mutexes)} were found")

rooms = set(re.findall(r"^  ([a-z_]+) *:", (ROOT / "paceline/LAYERS").read_text(), re.M))
labels = set()
for path in [*(ROOT / "tests").rglob("CMakeLists.txt"), *(ROOT / "tests").rglob("*.cmake")]:
    text = path.read_text()
    for own, rest in re.findall(r"paceline_add_test\(NAME (\w+)([^)]*)", text):
        labels |= set() if "LABELS" in rest else {own}
    for words in re.findall(r'\bLABELS "?([a-z_]+(?:[; ][a-z_]+\b)*)', text):
        labels |= set(re.split("[; ]", words))
contributing = (ROOT / "CONTRIBUTING.md").read_text()
table = re.search(r"^\| label \|.*?\n\n", contributing, re.M | re.S)
compare("labels", set(re.findall(r"^\| `(\w+)` \|", table[0] if table else "", re.M)), labels - rooms)

FORMATS = {
    "telemetry/flight_file.h": "telemetry", "telemetry/call_gauge_file.h": "telemetry", "telemetry/step_gauge.cpp": "telemetry",
    "store/file_store.cpp": "store", "collectives/backends/paceline/group_share.h": "transport",
}
for source, room in FORMATS.items():
    text = (ROOT / "paceline/engine" / room / "FORMAT.md").read_text()
    asserted = re.findall(r"static_assert\(((?:sizeof|offsetof)\([^;]*?)\);", everything["paceline/engine/" + source])
    numbers = {eval(re.sub(r"std::size_t\{(\d+)\}", r"\1", number)) for one in asserted
               for number in re.findall(r"(?:sizeof|offsetof)\([^)]*\) == ([\dstd:_ize{}* ]*\d)", one)}
    if not numbers:
        found.append(f"sizes: {source} asserts none")
    for number in numbers:
        if not re.search(rf"(?<![\d,]){number:,}(?![\d,])", text):
            found.append(f"sizes: {source} asserts {number:,}, which is not in {room}/FORMAT.md")

architecture = (ROOT / "docs/architecture.md").read_text()
for library, header in {"spdlog": "spdlog/", "libsodium": "sodium.h", "hwloc": "hwloc.h", "xxHash": "xxhash.h", "utf8proc": "utf8proc.h",
                        "zlib": "zlib.h", "nlohmann-json": "nlohmann/"}.items():
    row = re.search(rf"^\| {library} \|([^|]*)\|", architecture, re.M)
    compare(f"users of {library}", set(re.findall(r"`(\w+)", row[1] if row else "")),
            {path.split("/")[2] for path, text in everything.items() if path.startswith("paceline/") and f"#include <{header}" in text}, least=1)

public, reached = {"paceline/paceline.h"}, set()
while public:
    path = public.pop()
    reached.add(path)
    text = everything.get(path, "")
    public |= set(re.findall(r'#include "(paceline/[^"]+)"', text)) - reached
    if re.search("#include <(fmt|spdlog|nlohmann)/", text):
        found.append(f"public headers: {path} includes fmt, spdlog or nlohmann")
if len(reached) < 50:
    found.append(f"public headers: only {len(reached)} were found")

print("\n".join(found) if found else f"claims: {len(names)} threads and {len(mutexes)} mutexes, as the pages say")
sys.exit(1 if found else 0)
