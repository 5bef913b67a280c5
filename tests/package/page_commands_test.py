#!/usr/bin/env python3
"""page_commands_test.py ROOT CMAKE BUILD_DIR: installs the build, runs the commands of the pages that need one machine only, and checks that
they succeed. Training programs make a hundredth of the steps, and the reader's own program, ./train, ends at once."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT, CMAKE, BUILD = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
sys.path.insert(0, str(ROOT / "tests/readme"))
from page_commands import commands  # noqa: E402

PROGRAMS = {"train_image", "train_gpt", "train_recommender", "train_ps", "checkpoint_loop", "./train", "02_plain_training",
            "03_distributed_training", "05_libtorch_parts"}
STARTERS = {"run", "submit"}
# Commands that need what a test does not have, by their text.
LEFT_OUT = re.compile(r"--(hosts|hostfile) (?!.*--dry-run)|--nnodes|\.\.\.|\bbuild/|\.py\b"  # other hosts; forms; files of the reader
                      r"|--dataset folder|--movielens|--text|--peer|--calibrate|--profile|--against"
                      r"|paceline (advise|explain|timeline|top|stacks|logs|stop|gpu-check|doctor)\b"  # they take long, or need a job
                      r"|kubernetes")
# What a page takes for granted.
BEFORE = {"docs/checkpoints.md": ["train_gpt", "--layers", "1", "--width", "16", "--context", "16", "--max-steps", "100", "--sample", "0",
                                  "--checkpoint-every", "100", "--checkpoint-dir", "run"]}
LIMIT_S = 120


def shortened(words):
    """The command with a hundredth of its steps."""
    words = [re.sub(r"(?<=step)\d+$", lambda number: str(max(1, int(number[0]) // 100)), word) for word in words]
    for i, word in enumerate(words[:-1]):
        if word in ("--max-steps", "--checkpoint-every", "--warmup"):
            words[i + 1] = str(max(1, int(words[i + 1]) // 100))
    program = next((word for word in words if word in PROGRAMS), "")
    if program in ("train_image", "train_gpt", "train_ps") and "--max-steps" not in words:
        words += ["--max-steps", "2"]
    if program == "train_gpt":
        words += ["--sample", "0"]
    if program == "train_recommender":
        words += ["--samples", "2000", "--rows", "100"]
    if words[:2] == ["paceline", "submit"] and "--dry-run" not in words:
        words[3:3] = ["--dry-run"]
    return words


def is_runnable(words):
    if LEFT_OUT.search(" ".join(words)):
        return False
    if words[0] == "paceline" and len(words) > 1:
        return words[1] not in STARTERS or any(word in PROGRAMS for word in words)
    return words[0] in PROGRAMS and words[0] != "./train"


def run(words, folder):
    """The problem with a command; empty if it succeeds."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"has not ended within {LIMIT_S} s"
    except FileNotFoundError:
        return f"{words[0]} was not found"
    return "" if done.returncode == 0 else f"exit code {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"


def run_pages():
    """(the number of the commands, the problems)"""
    seen, failures = set(), []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name = page.relative_to(ROOT).as_posix()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TMPDIR"] = folder
            program = pathlib.Path(folder) / "train"
            program.write_text("#!/bin/sh\nexit 0\n")
            program.chmod(0o755)
            if name in BEFORE:
                failures += [f"{name}: {problem}" for problem in [run(BEFORE[name], folder)] if problem]
                subprocess.run(["cp", "-r", "run", "other"], cwd=folder, check=True)
            for number, words in commands(page):
                if name == "docs/mistakes.md" or not is_runnable(words) or tuple(words) in seen:
                    continue
                seen.add(tuple(words))
                short = shortened(words)
                problem = run(short, folder)
                print(f"{name}:{number}: {' '.join(short)}", flush=True)
                if problem:
                    failures.append(f"{name}:{number}: {' '.join(short)}: {problem}")
    return len(seen), failures


def main():
    with tempfile.TemporaryDirectory() as prefix:
        problem = run([CMAKE, "--install", BUILD, "--prefix", prefix], BUILD)
        if problem:
            sys.exit(problem)
        os.environ |= {"PATH": f"{prefix}/bin:{BUILD}/examples:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        count, failures = run_pages()
    if count < 40:
        failures.append(f"only {count} commands were found")
    print("\n".join(["FAILED:", *failures]) if failures else f"page_commands: {count} commands of the pages succeed")
    sys.exit(1 if failures else 0)


main()
