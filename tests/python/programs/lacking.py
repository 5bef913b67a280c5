"""Cases of training.py that some versions of torch cannot run on CPUs, not even with Gloo."""

import torch

CASES = {
    "2.6": ("fsdp2_with_a_checkpoint",),  # asks a stream of the CPU for record_event(), which it lacks
    "2.9": ("pipeline_1f1b", "pipeline_interleaved"),  # the stages' first messages differ; Gloo aborts the processes
}


def is_lacking(name):
    return name in CASES.get(".".join(torch.__version__.split(".")[:2]), ())
