"""The first and the last steps of every test program: it makes the default group from its arguments."""

import datetime
import sys

import torch.distributed as dist
from facts import tell  # noqa: F401: the programs import it from here

RANK, SIZE, STORE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ARGUMENTS = sys.argv[4:]


def init(backend="paceline", timeout=30, world_size=SIZE, store=None):
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        import paceline.torch  # noqa: F401: registers the backend; an installed wheel does it by itself
    store = store or dist.FileStore(STORE, SIZE)
    dist.init_process_group(backend, store=store, rank=RANK, world_size=world_size, timeout=datetime.timedelta(seconds=timeout))


def outcome(action):
    """The exception that `action` raises, as (type, text), or None."""
    try:
        action()
    except BaseException as error:  # a KeyboardInterrupt is an outcome as well
        return type(error).__name__, str(error)
    return None
