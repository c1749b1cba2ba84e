"""Low-rank adapters on a frozen model: only the adapters have state.

    python3 -m ballast.run --workers 2 lora.py

The base weights are registered as frozen: they are published once, lie in
memory once per node for all its workers, and cost no optimizer state, no
gradient segment and no traffic.
"""

import math

import torch
from torch import nn
from torch.nn import functional

import ballast.torch

WIDTH, RANK = 128, 4


class Adapted(nn.Module):
    """A frozen linear layer plus B @ A, which starts as zero."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(
            torch.randn(RANK, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + functional.linear(functional.linear(x, self.a),
                                                self.b)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pretrained = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(),
                               nn.Linear(WIDTH, WIDTH))
    target = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(*(Adapted(layer) if isinstance(layer, nn.Linear)
                            else layer for layer in pretrained))
    # model= names the parameters and registers the frozen ones.
    optimizer = ballast.torch.Optimizer(
        [p for p in model.parameters() if p.requires_grad],
        torch.optim.AdamW, lr=1e-2, model=model)
    session = optimizer.session
    shared = sum(array.nbytes for array in session.params.values())
    own = sum(array.nbytes for array in session.grads.values())
    if session.rank == 0:
        print("%d KiB of weights shared by the node, %d KiB of gradients per "
              "worker" % (shared >> 10, own >> 10), flush=True)
    for step in optimizer.steps(60):
        generator = torch.Generator().manual_seed(1000 * step + session.rank)
        inputs = torch.randn(32, WIDTH, generator=generator)
        loss = functional.mse_loss(model(inputs), target(inputs).detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if session.rank == 0 and step % 20 == 0:
            print("step %d loss %.5f" % (step, loss), flush=True)
    optimizer.close()


if __name__ == "__main__":
    main()
