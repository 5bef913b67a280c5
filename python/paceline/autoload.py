"""Called by `import torch` (its entry points `torch.backends`), because torch before 2.14 finds no backend by its name.

torch is being imported when this runs, so the backend itself is imported only when a group is made with it.
"""


def register():
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "_ensure_backend_registered"):
        return  # torch 2.14 and later finds the entry point `torch.distributed.backends`
    if "PACELINE" in dist.Backend._plugins:
        return

    def create(*arguments):
        from paceline.torch.create import create_group

        return create_group(*arguments)

    dist.Backend.register_backend("paceline", create, extended_api=True, devices=["cpu"])
