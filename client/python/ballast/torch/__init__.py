"""Ballast for PyTorch.

    optimizer = ballast.torch.Optimizer(
        model.parameters(), torch.optim.AdamW, lr=3e-4, job="gpt2")

The loop stays as it is: loss.backward(); optimizer.step();
optimizer.zero_grad(). A DeepSpeed loop keeps its JSON:

    engine, optimizer, _, scheduler = ballast.torch.initialize(
        model, config="ds_config.json", job="gpt2")

The guide is client/python/TORCH.md.
"""

from .engine import Engine, Initialized, initialize
from .optimizer import Optimizer

__all__ = ["Engine", "Initialized", "Optimizer", "initialize"]
