"""Bad input and faults: every rank gets an error that names the cause, within the deadline (programs/faults.py)."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

FAULTS = pathlib.Path(__file__).with_name("programs") / "faults.py"

# The words before a command that gives it mounts of its own.
OWN_MOUNTS = ["unshare", *(() if os.getuid() == 0 else ("--user", "--map-root-user")), "--mount"]


def errors(rank):
    return [one["error"] for one in rank.results if "error" in one]


def only_error(rank):
    (error,) = errors(rank)
    assert error is not None, rank.out
    return error


def timed_out_after(text):
    """The seconds that an error says the rank has waited: on a busy machine they begin later than the deadline's."""
    return float(re.search(r"timed out after (\d+\.\d) s", text)[1])


def test_a_rank_that_is_killed_is_named(start):
    ranks = start(3, "faults.py", "killed").wait()
    assert ranks[1].code == -signal.SIGKILL
    for number in (0, 2):
        kind, text = only_error(ranks[number])
        assert kind == "DistBackendError"
        assert "rank 1" in text and "all_reduce" in text, text
        assert ranks[number].results[0]["seconds"] < 5
        attributes = ranks[number].results[1]
        assert attributes["operation"] == "all_reduce" and attributes["group"] == "world", attributes


def test_a_rank_that_is_killed_leaves_no_file_and_no_process_behind(tmp_path):
    """The ranks are the only processes of a PID namespace whose /dev/shm and TMPDIR are empty; afterwards it lists what remains."""
    script = """
        mount -t tmpfs tmpfs /dev/shm || exit
        for rank in 0 1 2; do "$@" $rank 3 "$STORE" killed & done
        wait
        for process in /proc/[0-9]*; do [ $process = /proc/1 ] || echo "left behind: $process"; done
        ls -A /dev/shm "$TMPDIR" | sed -n '/^[^/]/s/^/left behind: /p'
    """
    variables = {"STORE": tmp_path / "store", "TMPDIR": tmp_path / "empty", "OMP_NUM_THREADS": "1", "PACELINE_BIND": "0"}
    variables["TMPDIR"].mkdir()
    command = [*OWN_MOUNTS, "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh", sys.executable, FAULTS]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **variables})
    lines = outcome.stdout.splitlines()
    survivors = [json.loads(line) for line in lines if line.startswith('{"error"')]
    assert [one["error"][0] for one in survivors] == ["DistBackendError"] * 2, outcome.stdout + outcome.stderr
    assert not [line for line in lines if line.startswith("left behind")], outcome.stdout


def test_a_rank_that_is_stopped_is_named_after_the_timeout(start):
    ranks = start(2, "faults.py", "stopped")
    ranks[0].wait()
    kind, text = only_error(ranks[0])
    assert kind == "DistBackendError"
    assert "rank 1" in text and timed_out_after(text) == pytest.approx(3, abs=0.5), text
    ranks[1].signal(signal.SIGKILL)


@pytest.mark.parametrize("fault, mine, theirs", [
    ("another_shape", "float32 x 4", "float32 x 5"),
    ("another_type", "float64 x 4", "float32 x 4"),
    ("another_order", "broadcast", "all_reduce"),
])
def test_a_rank_that_makes_another_call_is_shown_with_both_calls(start, fault, mine, theirs):
    for rank in start(2, "faults.py", fault).wait():
        kind, text = only_error(rank)
        assert kind == "DistBackendError"
        assert mine in text and theirs in text and "do not match" in text, text


def test_a_rank_that_raises_ends_and_the_others_learn_that_it_has_left(start):
    ranks = start(2, "faults.py", "throws").wait()
    assert ranks[1].code == 1 and "ValueError: this rank gives up" in ranks[1].out
    kind, text = only_error(ranks[0])
    assert kind == "DistBackendError" and "rank 1" in text, text


def test_a_rank_that_is_late_is_named_after_the_timeout(start):
    kind, text = only_error(start(2, "faults.py", "late_rank").wait()[0])
    assert kind == "DistBackendError"
    assert "rank 1" in text and "has not arrived" in text and timed_out_after(text) == pytest.approx(2, abs=0.5), text


def test_shorter_timeouts_of_a_wait_and_of_the_group_are_kept(start):
    ranks = start(2, "faults.py", "shorter_timeouts")
    ranks[0].wait()
    (_, waited), (kind, reduced) = errors(ranks[0])
    assert kind == "DistBackendError"
    assert "is not complete after 1000 ms, and continues" in waited, waited
    assert "rank 1" in reduced and timed_out_after(reduced) == pytest.approx(2, abs=0.5), reduced


def test_a_group_that_one_rank_aborts_ends_on_every_rank(start):
    ranks = start(3, "faults.py", "aborted").wait()
    for number in (0, 2):
        kind, text = only_error(ranks[number])
        assert kind == "DistBackendError" and "rank 1" in text and "the program aborted the group" in text, text
    for kind, text in errors(ranks[1]):
        assert kind == "DistBackendError", text
    assert "group world has been shut down in this process; make a new group" in errors(ranks[1])[1][1], ranks[1].out


def test_a_group_that_was_shut_down_says_so(start):
    for rank in start(2, "faults.py", "shut_down").wait():
        kind, text = only_error(rank)
        assert kind == "DistBackendError" and "group world has been shut down in this process; make a new group" in text, text


def test_a_rank_that_never_starts_is_named_after_the_timeout(start):
    kind, text = only_error(start(2, "faults.py", "a_rank_that_never_starts").wait()[0])
    assert kind == "DistBackendError"
    assert "rank 1, which did not arrive within 2000 ms" in text, text


def test_tensors_that_cannot_be_are_refused_before_anything_is_sent(start):
    expected = {
        "complex": "view_as_real",
        "sparse": "to_dense",
        "meta": "unsupported device type meta",
        "cuda": 'init_process_group("cpu:paceline,cuda:...")',
        "bitwise": "bit_and is not defined for float32",
        "size": "the output has 5 elements, not 2 times the 2 of the input",
        "not contiguous": "Tensors must be contiguous: give it tensor.contiguous()",
    }
    for rank in start(2, "faults.py", "refused_tensors").wait():
        seen = {one["case"]: one["error"] for one in rank.results}
        assert seen.pop("after") is None
        assert set(seen) == set(expected), rank.out
        for name, part in expected.items():
            assert seen[name] is not None and part in seen[name][1], (name, seen[name])


@pytest.mark.skipif(not hasattr(dist.Backend, "_ensure_backend_registered"), reason="an earlier torch has no such methods")
def test_what_a_group_cannot_do_names_the_alternative(start):
    for rank in start(2, "faults.py", "what_a_group_cannot_do").wait():
        seen = {one["case"]: one["error"] for one in rank.results}
        assert seen.pop("after") is None
        assert len(seen) == 5, rank.out
        for name, (kind, text) in seen.items():
            assert kind == "DistBackendError" and name in text, text
            assert ("isend" if name == "new_window" else "new_group" if name != "suspend" else "shut it down") in text, text


def test_two_groups_of_the_same_ranks_do_not_mix(start):
    for rank in start(2, "faults.py", "two_groups_of_one_name").wait():
        assert errors(rank) == [None, None], rank.out


def test_a_second_group_of_one_name_in_one_store_is_refused_and_the_first_still_works(start):
    for rank in start(2, "faults.py", "two_groups_in_one_place").wait():
        (kind, text), first = errors(rank)
        assert first is None
        assert kind == "DistBackendError" and "forming group one name" in text and "another name, or close the first" in text, text


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_store_that_dies_is_an_error_that_says_so(start):
    ranks = start(2, "faults.py", "store_that_dies", free_port()).wait()
    kind, text = only_error(ranks[1])
    assert kind == "DistBackendError" and "store in which the ranks meet" in text, text


def test_a_store_that_dies_later_does_not_disturb_the_group(start):
    for rank in start(3, "faults.py", "store_that_dies_later", free_port()).wait()[:2]:
        after, (kind, _) = errors(rank)
        assert after is None
        assert kind in ("DistBackendError", "DistNetworkError", "DistStoreError"), rank.out


def test_a_forked_worker_gets_an_error_and_the_loader_works(start):
    for rank in start(2, "faults.py", "forked_workers").wait():
        (kind, text), after = errors(rank)
        assert after is None
        assert "made by fork()" in text, text
        assert rank.code == 0, rank.out


def test_an_exit_with_work_in_flight_ends_in_order(start):
    ranks = start(2, "faults.py", "exit_with_work_in_flight", own_interpreters=True).wait(60)
    assert [rank.code for rank in ranks] == [0, 0], [rank.out for rank in ranks]


def test_the_end_leaves_no_thread_that_completes_futures(start):
    (rank,) = start(1, "faults.py", "exit_while_a_thread_starts").wait()
    assert rank.results == [{"left": []}] and rank.code == 0, rank.out


def test_an_exit_without_destroying_the_groups_ends_in_order(start):
    ranks = start(2, "faults.py", "exit_without_destroying_groups", own_interpreters=True).wait()
    assert [rank.code for rank in ranks] == [0, 0], [rank.out for rank in ranks]


def test_a_group_forms_again_in_the_same_store(start):
    for rank in start(2, "faults.py", "groups_that_form_again").wait():
        assert errors(rank) == [None] * 3 and rank.code == 0, rank.out


def test_debugging_in_detail_shows_both_calls_and_the_group_still_works(start):
    for rank in start(2, "faults.py", "calls_that_differ_with_debugging").wait():
        (_, text), after = errors(rank)
        assert after is None, rank.out
        assert "[4]" in text and "[5]" in text and "Collectives differ in the following" in text, text


def test_a_dev_shm_of_64_kb_is_enough(start):
    mount = [*OWN_MOUNTS, "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]
    for rank in start(2, "faults.py", "without_shared_memory_files", own_interpreters=mount).wait():
        assert errors(rank) == [None], rank.out


@pytest.mark.parametrize("fault", ["interrupted", "interrupted_in_a_wait", "interrupted_while_the_group_forms"])
def test_ctrl_c_is_a_keyboard_interrupt_within_a_second(start, fault):
    ranks = start(2, "faults.py", fault).wait()
    kind, _ = only_error(ranks[0])
    assert kind == "KeyboardInterrupt", ranks[0].out
    pressed = 1 if fault == "interrupted_while_the_group_forms" else 0.5
    assert ranks[0].results[0]["seconds"] < pressed + 1
    if fault == "interrupted":
        kind, text = only_error(ranks[1])
        assert kind == "DistBackendError" and "Ctrl-C" in text, text
