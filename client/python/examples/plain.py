"""A small classifier in plain PyTorch: where adopting Ballast starts.

with_ballast.py is this file with one line more and one changed.
"""

import os

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", "0"))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
teacher = torch.randn(20, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
for step in range(60):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 20, generator=generator)
    loss = functional.cross_entropy(model(inputs), (inputs @ teacher).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    scheduler.step()
    if step % 10 == 9:
        print("rank %d step %d loss %.5f" % (rank, step + 1, loss), flush=True)
