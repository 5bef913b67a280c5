"""The cost of losing one of two hosts of an elastic job (`--nnodes 1:2`, one rank per host). The hosts are network namespaces."""
import glob
import os
import random
import sys
import tempfile
import time

from side_by_side import spread
from survivors import FOREVER, gauge, start_job, wait_for
from hosts import Hosts

BAR = 5.0
PORT = 29400


def steps_of(flights):
    """Maps the processes that have a gauge in the folder to their steps."""
    return dict(reading for rank in range(len(glob.glob(f"{flights}/rank-*.steps")) + 2) if (reading := gauge(flights, rank)))


class Loss:
    """Seconds from the loss to the next step of the remaining host. If there is no such step: None, and how its launcher ended."""

    def __init__(self, contestant, lost, cut, patience):
        self.seconds, self.end = None, f"no step within {patience} s"
        with tempfile.TemporaryDirectory() as folder, Hosts() as hosts:
            jobs = [self.start(contestant, hosts, number, folder) for number in (0, 1)]
            left, flights = 1 - lost, f"{folder}/{1 - lost}/flights"
            for number in (0, 1):
                wait_for(lambda n=number: any(steps >= 20 for steps in steps_of(f"{folder}/{n}/flights").values()),
                         f"{contestant.name}: the twentieth step of host {number}")
            time.sleep(1 + random.random() * contestant.polls)
            before, victims = steps_of(flights), hosts.processes(lost)
            begin = time.monotonic()
            if cut:
                hosts.cut(lost)
            hosts.kill(victims)
            while time.monotonic() < begin + patience:
                if any(steps > 0 for pid, steps in steps_of(flights).items() if pid not in before):
                    self.seconds = time.monotonic() - begin
                    break
                if jobs[left].poll() is not None:
                    self.end = f"its launcher ends after {time.monotonic() - begin:.1f} s with exit code {jobs[left].returncode}"
                    break
                time.sleep(0.001)
            hosts.kill(hosts.processes(left))
            for job in jobs:
                job.wait()

    @staticmethod
    def start(contestant, hosts, number, folder):
        own = f"{folder}/{number}"
        os.mkdir(own)
        endpoint = f"{hosts.address(0)}:{PORT}"
        command = contestant.on_hosts(folder, FOREVER, *contestant.two_hosts(endpoint, number == 0))
        return start_job([*hosts.enter(number), *command], own, {**contestant.environment, **contestant.between_hosts(folder)})


def lose_hosts(contestants, options):
    """Prints the table; returns the bars that the first contestant missed."""
    if os.geteuid() != 0:
        sys.exit("survive_bench host: network namespaces need root")
    cases = [("the other host, killed: its kernel closes the connections", 1, False),
             ("the other host, cut off and killed: silence", 1, True),
             ("the host of the meeting point, killed", 0, False),
             ("the host of the meeting point, cut off and killed", 0, True)]
    print(f"\nfrom the loss to the first step of the smaller world, s, median [least, most]\n\n| lost | "
          f"{' | '.join(contestant.name for contestant in contestants)} |\n|---{'|---' * len(contestants)}|")
    missed = []
    for what, lost, cut in cases:
        losses = [[] for _ in contestants]
        for number in range(options.rounds):
            for contestant, own in zip(contestants, losses):
                if contestant is contestants[0] or number < options.peer_rounds:
                    own.append(Loss(contestant, lost, cut, options.patience))
        print(f"| {what} | {' | '.join(map(outcome, losses))} |", flush=True)
        slow = [loss for loss in losses[0] if loss.seconds is None or loss.seconds > BAR]
        missed += [f"{what}: {outcome(slow)}, the bar is {BAR} s"] if slow else []
    return missed


def outcome(losses):
    seconds = [loss.seconds for loss in losses if loss.seconds is not None]
    without = [loss.end for loss in losses if loss.seconds is None]
    return "; ".join(([spread(seconds, 1) + f" of {len(seconds)}"] if seconds else []) + without)
