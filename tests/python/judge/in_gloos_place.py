"""A pytest plugin for PyTorch's own tests (judge.py loads it): puts Paceline in Gloo's place, and writes down what each test did.

JUDGE_BACKEND: "paceline" or "gloo". JUDGE_RESULTS: the file that gets a JSON object for each test, with its name, its outcome, the number of
Paceline's groups that its processes made, and the end of its error.

The processes of a test are forked from pytest, which has imported torch already, instead of started as new interpreters: that takes a tenth
of the time, and the children inherit this plugin's changes.
"""

import gc
import json
import os
import tempfile

import torch
from torch.testing._internal import common_distributed

RESULTS = os.environ["JUDGE_RESULTS"]
IS_PACELINE = os.environ["JUDGE_BACKEND"] == "paceline"

# Every process of a test appends a byte for each group that it makes.
_count_file, _count_path = tempfile.mkstemp(prefix="judge")
_outcomes = {}


def _replace_gloo():
    import paceline.torch
    from paceline.torch import alias, create

    make = create.create_group

    def counting(options, backend_options=None):
        os.write(_count_file, b"x")
        return make(options, backend_options)

    alias.create_group = counting
    paceline.torch.stand_in_for_gloo()
    return alias._create


def _start_by_fork(self):
    # Garbage that has threads, such as a store of an earlier test, must be collected here: the child lacks the threads that it would join.
    gc.collect()
    gc.freeze()
    self._start_processes(torch.multiprocessing.get_context("fork").Process)


torch.set_num_threads(1)
common_distributed.MultiProcessTestCase._spawn_processes = _start_by_fork
_create = _replace_gloo() if IS_PACELINE else None


def _group_for_tests_of_gloo(self, store, rank, world_size, options):
    """The tests of ProcessGroupGloo make their groups by this method, from the class in C++, and get one of Paceline instead."""
    from torch.distributed import distributed_c10d as c10d

    given = c10d._DistributedBackendOptions()
    given.store, given.group_rank, given.group_size = store, self.rank, self.world_size
    given.timeout, given.group_id = options._timeout, "gloo"
    given.global_ranks_in_group = list(range(self.world_size))
    group = _create(given)
    torch.distributed.barrier(group=group)
    return group


def pytest_collection_modifyitems(items):
    if not IS_PACELINE:
        return
    for item in items:
        kind = getattr(item, "cls", None)
        if kind is not None and kind.__name__ == "ProcessGroupGlooTest":
            kind._create_process_group_gloo = _group_for_tests_of_gloo


def pytest_runtest_logreport(report):
    if report.when == "setup":
        _outcomes[report.nodeid] = ("passed", os.fstat(_count_file).st_size, report.start, "")
    _, before, started, _ = _outcomes[report.nodeid]
    if report.outcome != "passed":
        text = str(report.longrepr)
        _outcomes[report.nodeid] = (report.outcome, before, started, text[-6000:])
    if report.when == "teardown":
        outcome, before, started, text = _outcomes.pop(report.nodeid)
        groups = os.fstat(_count_file).st_size - before
        facts = {"name": report.nodeid, "outcome": outcome, "groups": groups, "seconds": report.stop - started, "text": text}
        with open(RESULTS, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def pytest_unconfigure():
    os.unlink(_count_path)
