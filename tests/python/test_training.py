"""Training programs (programs/training.py): the losses are those of Gloo, and have the same bits in every run. Those of pipelines are also
compared with one process, in the program itself."""

import pathlib
import re
import runpy

import pytest
import torch

PROGRAMS = pathlib.Path(__file__).with_name("programs")
SOURCE = (PROGRAMS / "training.py").read_text()
is_lacking = runpy.run_path(str(PROGRAMS / "lacking.py"))["is_lacking"]
LACKING = pytest.mark.skip(reason=f"torch {torch.__version__} cannot do it on CPUs, with Gloo either")
LACKING_WITH_GLOO = pytest.mark.skip(reason=f"torch {torch.__version__} cannot do it with Gloo")
NAMES = re.findall(r"^@case\ndef (\w+)", SOURCE, re.MULTILINE)
CASES = [pytest.param(name, marks=[LACKING] if is_lacking(name) else []) for name in NAMES]
CASES_OF_GLOO = [
    pytest.param(name, marks=[LACKING] if is_lacking(name) else [LACKING_WITH_GLOO] if is_lacking(name, "gloo") else []) for name in NAMES
]
RUNS = {}


@pytest.fixture
def losses(start):
    """losses(backend, run): the outcomes of both ranks, by case. Each run is made once for all cases."""

    def run(backend, number):
        if (backend, number) not in RUNS:
            ranks = start(2, "training.py", backend).wait(300)
            RUNS[backend, number] = [{one["case"]: one for one in rank.results} for rank in ranks], [rank.out for rank in ranks]
        return RUNS[backend, number]

    return run


def of_case(run, name):
    outcomes = []
    for rank, (cases, out) in enumerate(zip(*run)):
        assert name in cases, f"rank {rank} did not come so far:\n{out[-3000:]}"
        assert cases[name]["error"] is None, f"rank {rank}: {cases[name]['error']}"
        outcomes.append(cases[name]["losses"])
    assert any(outcomes)
    return outcomes


@pytest.mark.parametrize("name", CASES_OF_GLOO)
def test_the_losses_are_those_of_gloo(losses, name):
    for mine, theirs in zip(of_case(losses("paceline", 0), name), of_case(losses("gloo", 0), name)):
        assert [float.fromhex(loss) for loss in mine] == pytest.approx([float.fromhex(loss) for loss in theirs], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_equal_from_run_to_run(losses, name):
    assert of_case(losses("paceline", 0), name) == of_case(losses("paceline", 1), name)
