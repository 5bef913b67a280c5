"""The backend `paceline` of torch.distributed, for tensors of the CPU.

    import torch.distributed as dist
    dist.init_process_group("paceline")

torch 2.14 and later finds the backend by its name. With an earlier one, `import torch` registers it. docs/python.md has the rest.
"""

import os

try:
    import torch.distributed as dist
except ImportError as error:
    raise ImportError(
        f"paceline.torch needs torch 2.6 or later, which cannot be imported ({error}): pip install torch. paceline.numpy works without it."
    ) from error

from paceline.torch.versions import require_known

require_known()

from paceline.torch.create import create_group  # noqa: E402: the version is checked first

__all__ = ["register", "stand_in_for_gloo"]


def register():
    """Makes the name "paceline" known to torch.distributed. Importing this module calls it."""
    if "PACELINE" not in dist.Backend._plugins:
        dist.Backend.register_backend("paceline", create_group, extended_api=True, devices=["cpu"])
    if os.environ.get("PACELINE_TORCH_DEFAULT") == "1":
        stand_in_for_gloo()


def stand_in_for_gloo():
    """Makes this backend answer to the name "gloo" as well, for programs that write that name into their source. Groups that exist keep
    their backend. PACELINE_TORCH_DEFAULT=1 does the same."""
    from paceline.torch.alias import replace_gloo

    replace_gloo()


register()
