"""Errors of the engine as PyTorch's programs expect them: torch.distributed.DistBackendError, with the facts of paceline.Error."""

from torch.distributed import DistBackendError

from paceline._core import Error


def as_dist_error(error):
    """Returns the DistBackendError that stands for `error`, with its attributes code, operation, group, ranks and deadline."""
    made = DistBackendError(str(error))
    for name in ("code", "operation", "group", "ranks", "deadline"):
        setattr(made, name, getattr(error, name))
    return made


class DistBackendValueError(DistBackendError, ValueError):
    """A DistBackendError where programs expect a ValueError, because torch's own backends raise one."""


def refuse(operation, text, kind=DistBackendError):
    """Raises the DistBackendError of a call that cannot be made, before any rank waits for it."""
    error = kind(f"paceline: {operation}: {text}")
    error.code, error.operation, error.group, error.ranks, error.deadline = "invalid", operation, "", [], None
    raise error


__all__ = ["DistBackendValueError", "Error", "as_dist_error", "refuse"]
