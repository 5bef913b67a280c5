"""accelerate, Lightning and a model of transformers with tp_plan, each beside Gloo, and accelerate's own test scripts. A framework that is
not installed is skipped: `scripts/test_python --frameworks` installs them."""

import importlib.util
import pathlib

import pytest
from launching import assert_close, launch, losses, train

FRAMEWORKS = {
    "accelerate": "train_with_accelerate.py",
    "lightning": "train_with_lightning.py",
    "transformers": "generate_with_transformers.py",
}
# The scripts that pass with Gloo on CPUs: test_ddp_comm_hook.py and test_distributed_data_loop.py fail there as well.
SCRIPTS = ("test_ops.py", "test_script.py", "test_sync.py")


def run(framework, backend):
    """accelerate has no option for the backend, so it asks for "gloo" in both cases."""
    stands_in = framework == "accelerate" and backend == "paceline"
    variables = {"PACELINE_TORCH_DEFAULT": str(int(stands_in)), "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    return train("torchrun", "gloo" if stands_in else backend, FRAMEWORKS[framework], **variables)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_losses_are_those_of_gloo_and_the_bits_equal_from_run_to_run(framework):
    pytest.importorskip(framework)
    mine = run(framework, "paceline")
    assert all(one["backend"].startswith("Paceline") for one in mine), mine
    assert losses(run(framework, "paceline")) == losses(mine)
    theirs = run(framework, "gloo")
    assert not any(one["backend"].startswith("Paceline") for one in theirs), theirs
    assert_close(mine, theirs, 1e-4)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_of_accelerate_pass_in_gloos_place(script):
    pytest.importorskip("accelerate")
    folder = pathlib.Path(importlib.util.find_spec("accelerate").origin).parent / "test_utils" / "scripts"
    launch("torchrun", folder / script, PACELINE_TORCH_DEFAULT="1", ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")
