"""Paceline: collectives in shared memory for PyTorch on CPUs, and a launcher.

    import torch.distributed as dist
    dist.init_process_group("paceline")      # instead of "gloo"

This package itself needs neither PyTorch nor NumPy: `paceline.torch` and `paceline.numpy` do. The command `paceline` starts programs
(`paceline run --nproc-per-node 4 train.py`).
"""

from paceline._core import Error, VERSION as __version__

__all__ = ["Error", "__version__"]
