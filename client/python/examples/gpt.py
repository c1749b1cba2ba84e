"""A character-level GPT and its data: what the training examples share.

The model is plain PyTorch, large enough that its matrices, not its biases and
norms, are what a step moves. The text is real and on every Debian: the
licenses under /usr/share/common-licenses. A rank's batch is a function of
(seed, step, rank), so a worker that starts again computes the same gradient.
"""

import glob
import hashlib
import math
import os
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CONTEXT = 96
BATCH = 4
WIDTH = 192
HEADS = 6
LAYERS = 2
LEARNING_RATE = 3e-3
WARMUP_STEPS = 10
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
CLIPPING = 1.0


def load_text() -> Tuple[torch.Tensor, int]:
    """The corpus as numbers of characters, and how many kinds there are."""
    paths = sorted(path for path in glob.glob("/usr/share/common-licenses/*")
                   if not os.path.islink(path))
    text = b"".join(open(path, "rb").read() for path in paths)
    kinds, codes = np.unique(np.frombuffer(text, np.uint8),
                             return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), len(kinds)


def batch(text: torch.Tensor, seed: int, step: int,
          rank: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one rank's step."""
    key = hashlib.sha256(b"%d %d %d" % (seed, step, rank)).digest()
    generator = torch.Generator().manual_seed(
        int.from_bytes(key[:7], "little"))
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,),
                           generator=generator)
    rows = starts[:, None] + torch.arange(CONTEXT + 1)
    return text[rows[:, :-1]], text[rows[:, 1:]]


class Layer(nn.Module):
    """Attention and a two-layer network, each on a normalised residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.merge = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        mask = torch.full((CONTEXT, CONTEXT), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2)
                   for part in self.attention(self.norm1(x)).chunk(3, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + self.mask
        mixed = (scores.softmax(3) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.merge(mixed)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):

    def __init__(self, num_kinds: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_kinds, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_kinds)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.05)

    def loss(self, inputs: torch.Tensor,
             targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(inputs) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1),
                                        targets.flatten())


def evaluate(model: Gpt, text: torch.Tensor, batches: int = 64) -> float:
    """Mean loss over batches that are the same for every run."""
    with torch.no_grad():
        return sum(model.loss(*batch(text, 0, 0, k)).item()
                   for k in range(batches)) / batches


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step <= WARMUP_STEPS:
        return LEARNING_RATE * step / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return LEARNING_RATE * (0.55 + 0.45 * math.cos(math.pi * done))


def param_groups(model: nn.Module) -> List[Dict[str, Any]]:
    """Matrices decay; biases and norms do not."""
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        is_other = name.endswith(".bias") or "norm" in name
        (others if is_other else decayed).append(parameter)
    return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]


def pytorch_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """The optimizer of the examples, as PyTorch has it."""
    return torch.optim.AdamW(
        param_groups(model), lr=LEARNING_RATE, betas=BETAS,
        weight_decay=WEIGHT_DECAY, foreach=False)


def size(model: nn.Module) -> int:
    """How many parameters it has."""
    return sum(parameter.numel() for parameter in model.parameters())


def weights(model: nn.Module) -> Dict[str, np.ndarray]:
    return {name: parameter.detach().numpy()
            for name, parameter in model.named_parameters()}
