"""GPT-2 in plain PyTorch, with the tensors of gpt2.py; the head is tied to the
embedding."""

import math

import torch
from torch import nn
from torch.nn import functional

import gpt2

VOCABULARY, POSITIONS = 50257, 1024
_HEAD_WIDTH = 64
# Of a run that only shows that the benchmark works.
TINY = gpt2.Size(2, 128, 6_960_768)


def size(name: str) -> gpt2.Size:
    return TINY if name == "tiny" else gpt2.SIZES[name]


class Layer(nn.Module):

    def __init__(self, width: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)
        self._heads = width // _HEAD_WIDTH

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (part.view(rows, length, self._heads, -1).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).chunk(3, dim=2))
        mask = torch.full((length, length), -math.inf).triu(1)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + mask
        mixed = (scores.softmax(3) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.c_proj(mixed)
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))


class Gpt2(nn.Module):
    """forward(tokens, targets) is the loss."""

    def __init__(self, of: gpt2.Size):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, of.width)
        self.wpe = nn.Embedding(POSITIONS, of.width)
        self.h = nn.ModuleList(Layer(of.width) for _ in range(of.layers))
        self.ln_f = nn.LayerNorm(of.width)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.01)
        elements = sum(p.numel() for p in self.parameters())
        assert elements == of.elements, (elements, of)

    def forward(self, tokens: torch.Tensor,
                targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for layer in self.h:
            x = layer(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1),
                                        targets.flatten())
