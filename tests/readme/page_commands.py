"""The commands in the blocks of code of the pages."""
import re
import shlex

# How a line with commands begins; other lines are output.
COMMAND = re.compile(r"^\$? ?(\(?[A-Z_]+=\S* |export |paceline [a-z-]+( |$)|train_|mpirun |srun |salloc |podman |\$VENV|(scripts|tools|benchmarks|containers|build)/|cmake |/usr)")


def commands(page):
    """(line number, words) of each command in a block of code; a line that ends with a backslash goes on."""
    in_fence, in_code, joined, begin = False, False, "", 0
    for number, line in enumerate(page.read_text().split("\n"), 1):
        fence = re.match(r"^ *```(\w*)", line)
        if fence:
            in_fence = not in_fence
            in_code = in_fence and fence[1] in ("", "bash", "sh")
            joined = ""
            continue
        indented = re.match(r"^    (?=(paceline|benchmarks/|\$VENV|build/|/usr/bin/python3) ?)", line)
        if not in_code and not indented:
            continue
        if not joined:
            begin = number
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        text, joined = re.sub(r"(^|\s)#.*$|\s{3,}.*$", "", joined), ""  # without a comment or an explanation
        if not COMMAND.match(text):
            continue
        for part in re.split(r"\s*(?:&&|\|\||;|\||&)\s*", re.sub(r"'[^']*'|\"[^\"]*\"", lambda quoted: re.sub(r"[;&|]", "_", quoted[0]), text)):
            try:
                words = shlex.split(part.lstrip("$ "))
            except ValueError:
                continue
            while words and re.match(r"^[A-Z_]+=", words[0]):
                words = words[1:]
            if words:
                yield begin, words
