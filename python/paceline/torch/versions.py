"""The version of torch, and whether Paceline supports that version and which features it has."""

import re
import warnings

import torch

# The oldest and the newest version of torch, (major, minor), that Paceline is tested with.
OLDEST = (2, 6)
NEWEST_KNOWN = (2, 15)


def torch_version():
    """The installed version, (major, minor). A version that does not begin with two numbers counts as NEWEST_KNOWN."""
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (int(match[1]), int(match[2])) if match else NEWEST_KNOWN


def require_known():
    """Raises ImportError if torch is older than OLDEST. Warns if torch is newer than NEWEST_KNOWN."""
    version = torch_version()
    if version < OLDEST:
        raise ImportError(f"paceline.torch needs torch 2.6 or later, and this is torch {torch.__version__}: pip install --upgrade torch")
    if version > NEWEST_KNOWN:
        warnings.warn(
            f"paceline.torch is tested with torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST_KNOWN[0]}.{NEWEST_KNOWN[1]}, and this is torch "
            f"{torch.__version__}: it may fail; pip install --upgrade paceline",
            stacklevel=3,
        )


def has_python_backends():
    """Returns whether a Python class can be a backend of a ProcessGroup (torch 2.14 and later)."""
    return torch_version() >= (2, 14)
