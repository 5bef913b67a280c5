"""Cases of training.py that some versions of torch cannot run on CPUs."""

import torch

# Not even with Gloo.
CASES = {
    "2.6": ("fsdp2_with_a_checkpoint",),  # asks a stream of the CPU for record_event(), which it lacks
    "2.9": ("pipeline_1f1b", "pipeline_interleaved"),  # the stages' first messages differ; Gloo aborts the processes
}
# With Gloo only: its messages wait until they time out.
CASES_OF_GLOO = {"2.6": ("pipeline_1f1b", "pipeline_interleaved")}


def is_lacking(name, backend="paceline"):
    version = ".".join(torch.__version__.split(".")[:2])
    return name in CASES.get(version, ()) or (backend == "gloo" and name in CASES_OF_GLOO.get(version, ()))
