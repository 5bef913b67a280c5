"""The same training program under torchrun and `paceline run`, with the backend's name, with an alias for Gloo, and with Gloo."""

import os

import pytest
from launching import assert_close, losses, train


@pytest.fixture(scope="module")
def under_torchrun():
    return train("torchrun", "paceline")


def test_the_losses_are_those_of_gloo(under_torchrun):
    assert all(one["backend"].startswith("Paceline") for one in under_torchrun)
    assert_close(under_torchrun, train("torchrun", "gloo"))


def test_the_bits_are_equal_from_run_to_run_and_under_each_launcher(under_torchrun):
    assert losses(train("torchrun", "paceline")) == losses(under_torchrun)
    assert losses(train("paceline", "paceline")) == losses(under_torchrun)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be divided")
def test_each_rank_binds_itself_to_its_share_of_the_cores_under_torchrun(under_torchrun):
    first, second = (set(one["cores"]) for one in under_torchrun)
    assert first and second and not first & second
    first, second = (set(one["cores"]) for one in train("torchrun", "paceline", PACELINE_BIND="0"))
    assert first == second == os.sched_getaffinity(0)


def test_the_backend_can_stand_in_for_gloo(under_torchrun):
    facts = train("torchrun", "gloo", PACELINE_TORCH_DEFAULT="1")
    assert all(one["backend"].startswith("Paceline") for one in facts)
    assert losses(facts) == losses(under_torchrun)
