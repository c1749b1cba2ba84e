"""Ballast for PyTorch.

    optimizer = ballast.torch.Optimizer(
        model.parameters(), torch.optim.AdamW, lr=3e-4, job="gpt2")

The loop stays as it is: loss.backward(); optimizer.step();
optimizer.zero_grad(). See ../../TORCH.md.
"""

from .optimizer import Optimizer

__all__ = ["Optimizer"]
