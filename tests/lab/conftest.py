from importlib.util import find_spec

if find_spec("torch") is not None:
    from tests.torch.conftest import one_thread, without_fused_layers

    __all__ = ["one_thread", "without_fused_layers"]
