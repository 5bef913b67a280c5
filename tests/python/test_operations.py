"""Every operation of torch.distributed on CPU tensors, at 2 and at 4 ranks (programs/operations.py)."""

import pathlib
import re

import pytest

SOURCE = (pathlib.Path(__file__).with_name("programs") / "operations.py").read_text()
CASES = [*re.findall(r"^@case\ndef (\w+)", SOURCE, re.MULTILINE), "end"]
RESULTS = {}


@pytest.fixture(params=[2, 4])
def results(request, start):
    """The ranks run once for all cases."""
    if request.param not in RESULTS:
        ranks = start(request.param, "operations.py").wait(300)
        RESULTS[request.param] = [{one["case"]: one["error"] for one in rank.results} for rank in ranks], [rank.out for rank in ranks]
    return RESULTS[request.param]


@pytest.mark.parametrize("name", CASES)
def test_operation(results, name):
    for rank, (cases, out) in enumerate(zip(*results)):
        assert name in cases, f"rank {rank} did not come so far:\n{out[-3000:]}"
        assert cases[name] is None, f"rank {rank}: {cases[name]}"
