"""Called by `import torch` (its entry points `torch.backends`).

torch before 2.14 finds no backend by its name, so the name is registered here; the backend itself is imported only when a group is made
with it. And PACELINE_TORCH_DEFAULT=1 must take effect in programs that do not import this package.
"""

import os
import warnings


def register():
    try:
        _register()
    except Exception as error:  # `import torch` must not fail because of this package
        warnings.warn(f"paceline: the backend is not registered: {error}", stacklevel=2)


def _register():
    import torch.distributed as dist

    if not dist.is_available():
        return
    if os.environ.get("PACELINE_TORCH_DEFAULT") == "1":
        import paceline.torch  # noqa: F401: registers the backend in Gloo's place as well
    elif not hasattr(dist.Backend, "_ensure_backend_registered") and "PACELINE" not in dist.Backend._plugins:
        dist.Backend.register_backend("paceline", _create, extended_api=True, devices=["cpu"])


def _create(*arguments):
    from paceline.torch.create import create_group

    return create_group(*arguments)
