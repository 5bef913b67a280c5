"""The installed wheel: its size and what is in it, how long it takes to import, the command, arrays."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

import paceline

PROGRAMS = pathlib.Path(__file__).with_name("programs")
FOLDER = pathlib.Path(paceline.__file__).parent
PREFIX = os.path.realpath(sys.prefix)
COMMAND = pathlib.Path(sys.executable).with_name("paceline")


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, **options)


def test_the_wheel_is_small_and_has_no_libtorch():
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    libraries = FOLDER.with_name("paceline.libs")
    files += [path for path in libraries.rglob("*") if path.is_file()] if libraries.exists() else []
    assert sum(path.stat().st_size for path in files) < 20 << 20  # the wheel itself, compressed, is at most 10 MB
    (module,) = FOLDER.glob("_core*.so")
    needed = run("readelf", "-d", module).stdout
    assert "libtorch" not in needed and "libc10" not in needed, needed
    names = run("nm", "-D", "--defined-only", module).stdout
    assert [line.split()[-1] for line in names.splitlines() if " T " in line and "PyInit" in line] == ["PyInit__core"]


def test_the_version_is_that_of_the_package():
    assert importlib.metadata.version("paceline") == paceline.__version__


def test_importing_it_takes_less_than_50_ms():
    """Processor time, because the import waits for nothing, and on a busy machine the clock would measure other programs."""
    program = "import time; begin = time.process_time(); import paceline; print(time.process_time() - begin)"
    assert min(float(run(sys.executable, "-c", program).stdout) for _ in range(5)) < 0.05


def test_importing_it_leaves_the_handlers_of_the_process_alone():
    program = """
import ctypes, signal
find = ctypes.CDLL("libstdc++.so.6")._ZSt13get_terminatev
find.restype = ctypes.c_void_p
before = find(), [signal.getsignal(number) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)]
import paceline
assert before == (find(), [signal.getsignal(number) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)])
"""
    result = run(sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr


def test_the_command_is_the_program_in_the_wheel():
    version = run(COMMAND, "--version")
    assert version.returncode == 0 and paceline.__version__ in version.stdout
    assert "without LibTorch" in run(COMMAND, "doctor").stdout


def test_the_command_runs_a_script_by_the_interpreter_of_its_environment(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.path.realpath(sys.prefix), os.environ['RANK'])\n")
    outcome = run(COMMAND, "run", "--nproc-per-node", "2", "--all-ranks", script)
    assert outcome.returncode == 0, outcome.stderr
    assert sorted(re.findall(r"(\S+) (\d)$", outcome.stdout, re.MULTILINE)) == [(PREFIX, "0"), (PREFIX, "1")]


def test_the_command_runs_a_module(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import os, sys; print(__spec__.name, sys.argv[1:], os.environ['RANK'])\n")
    outcome = run(COMMAND, "run", "--nproc-per-node", "2", "--all-ranks", "-m", "package.train", "--epochs", "3", cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    for rank in range(2):
        assert f"package.train ['--epochs', '3'] {rank}" in outcome.stdout, outcome.stdout


SLEEPS = """import pathlib, sys, time
def waits_for_nobody(path):
    pathlib.Path(path).touch()
    time.sleep(60)
waits_for_nobody(sys.argv[1])
"""


def started(path, *command):
    """Starts a command that runs SLEEPS with `path`, and waits until it has come there."""
    process = subprocess.Popen([str(word) for word in command])
    end = time.monotonic() + 60
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return process


def has_py_spy():
    return pathlib.Path(sys.executable).with_name("py-spy").exists()


@pytest.mark.skipif(not has_py_spy(), reason="py-spy is not installed")
def test_stacks_shows_the_functions_of_python(tmp_path):
    (tmp_path / "script.py").write_text(SLEEPS)
    job = f"stacks-of-python-{os.getpid()}"
    process = started(tmp_path / "here", COMMAND, "run", "--nproc-per-node", "1", "--rdzv-id", job, tmp_path / "script.py", tmp_path / "here")
    try:
        shown = run(COMMAND, "stacks", job).stdout
    finally:
        process.terminate()
        process.wait(60)
    assert re.search(r"waits_for_nobody \(script.py:4\)\n *#\d+ +<module> \(script.py:5\)\n", shown), shown
    assert "nanosleep" in shown and "_PyEval" not in shown, shown


def test_stacks_says_how_to_see_the_functions_of_python(tmp_path):
    (tmp_path / "script.py").write_text(SLEEPS)
    process = started(tmp_path / "here", sys.executable, tmp_path / "script.py", tmp_path / "here")
    without = {**os.environ, "PACELINE_PYTHON": "/nowhere/python", "PATH": "/nowhere"}
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho 'Error: this process is not for you' >&2\nexit 1\n")
    (tmp_path / "py-spy").chmod(0o700)
    try:
        missing = run(COMMAND, "stacks", "--pid", process.pid, env=without)
        failing = run(COMMAND, "stacks", "--pid", process.pid, env={**without, "PATH": tmp_path})
    finally:
        process.kill()
        process.wait()
    assert "nanosleep" in missing.stdout and "py-spy is not installed: pip install py-spy" in missing.stdout, missing.stdout + missing.stderr
    assert "py-spy failed: Error: this process is not for you" in failing.stdout, failing.stdout + failing.stderr


def test_bench_compares_with_gloo():
    outcome = run(COMMAND, "bench", "--against", "gloo", "--sizes", "8K,1M", "--types", "float32,bfloat16", "--turns", "2")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    heading, *rows = [line.strip("| ").split(" | ") for line in outcome.stdout.splitlines() if "---" not in line]
    assert heading[:3] == ["2 ranks, all-reduce, us", "Paceline", "Gloo"] and heading[-1] == "Gloo / Paceline"
    assert [row[0] for row in rows] == ["float32, 8 KB", "float32, 1 MB", "bfloat16, 8 KB", "bfloat16, 1 MB"]
    for row in rows:
        assert len(row) == len(heading) and all(re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", text) for text in row[1:]), row


@pytest.mark.parametrize("options, part", [
    ((), "the following arguments are required: --against"),
    (("--against", "nccl"), "invalid choice: 'nccl'"),
    (("--against", "gloo", "--sizes", "8x"), "'8x' is not a list of bytes"),
    (("--against", "gloo", "--sizes", "0"), "'0' is not a list of bytes"),
    (("--against", "gloo", "--types", "int3"), "'int3' is not a list of float32"),
    (("--against", "gloo", "--ranks", "0"), "'0' is not a positive whole number"),
])  # fmt: skip
def test_bench_refuses_what_it_cannot_measure(options, part):
    outcome = run(COMMAND, "bench", *options)
    assert outcome.returncode == 2 and part in outcome.stderr, outcome.stderr


def test_the_failure_report_names_a_traceback_of_python(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os\nif os.environ['RANK'] == '1': raise KeyError('learning_rate')\nimport time; time.sleep(20)\n")
    outcome = run(COMMAND, "run", "--nproc-per-node", "2", script)
    assert outcome.returncode == 1
    assert "rank 1" in outcome.stderr and "KeyError: 'learning_rate'" in outcome.stderr, outcome.stderr


@pytest.mark.parametrize("size", [2, 3])
def test_arrays_of_numpy(size):
    outcome = run(COMMAND, "run", "--nproc-per-node", size, "--all-ranks", PROGRAMS / "arrays.py")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("all is well") == size


def test_without_torch_the_error_says_so_and_arrays_still_work():
    outcome = run(sys.executable, "-c", "import sys; sys.modules['torch'] = None; import paceline.numpy; import paceline.torch")
    assert outcome.returncode == 1 and "Traceback" in outcome.stderr
    assert "ImportError: paceline.torch needs torch 2.6 or later, which cannot be imported" in outcome.stderr, outcome.stderr


def test_a_torch_that_is_too_old_is_refused():
    outcome = run(sys.executable, "-c", "import torch; torch.__version__ = '2.5.1+cpu'; import paceline.torch")
    assert outcome.returncode == 1
    assert "ImportError: paceline.torch needs torch 2.6 or later, and this is torch 2.5.1+cpu" in outcome.stderr, outcome.stderr


@pytest.mark.skipif(not hasattr(dist.Backend, "_ensure_backend_registered"), reason="an earlier torch lacks what a later one is asked for")
def test_a_torch_that_is_newer_than_known_causes_a_warning_and_is_tried(tmp_path):
    program = (
        "import torch, torch.distributed as dist; torch.__version__ = '2.99.0'\n"
        f"dist.init_process_group('paceline', store=dist.FileStore('{tmp_path}/store', 1), rank=0, world_size=1)\n"
        "dist.all_reduce(tensor := torch.ones(1)); print(tensor.item()); dist.destroy_process_group()"
    )
    outcome = run(sys.executable, "-c", program)
    assert outcome.returncode == 0 and outcome.stdout == "1.0\n", outcome.stderr
    assert "UserWarning: paceline.torch is tested with torch 2.6 to 2.15, and this is torch 2.99.0" in outcome.stderr, outcome.stderr


def test_torchrun_is_there():
    assert shutil.which("torchrun", path=str(COMMAND.parent)), "torch is missing in the environment of the tests"
