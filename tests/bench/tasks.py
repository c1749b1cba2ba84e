"""What tools/bench training trains: the quickstart's GPT and a small
convolutional net with BatchNorm. A rank's batch is a function of (seed, step,
rank), so all ways of training see the same data in the same order."""

import hashlib
import os
import sys
from typing import Any, Tuple

import torch
from torch import nn
from torch.nn import functional

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(_HERE)),
                                "client", "python", "examples"))

import gpt  # noqa: E402

_CLASSES = 10
_SIDE = 16
_IMAGES = 16    # of a rank's batch
_NOISE = 2.5    # of an image, where its class has 1
_EVALUATED = 32  # batches


class ConvNet(nn.Module):
    """Two convolutions and two layers, a BatchNorm behind each but the last;
    its larger tensors are what a preset quantizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(64)
        self.middle = nn.Linear(64 * (_SIDE // 4)**2, 64, bias=False)
        self.norm3 = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self.norm1(self.conv1(x)).relu(), 2)
        x = functional.max_pool2d(self.norm2(self.conv2(x)).relu(), 2)
        return self.head(self.norm3(self.middle(x.flatten(1))).relu())


class Conv:
    """Ten patterns under noise."""

    LEARNING_RATE = 2e-3

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self._patterns = torch.randn(_CLASSES, 1, _SIDE, _SIDE,
                                     generator=generator)

    def model(self) -> nn.Module:
        return ConvNet()

    def batch(self, seed: int, step: int, rank: int) -> Tuple[Any, Any]:
        key = hashlib.sha256(b"conv %d %d %d" % (seed, step, rank)).digest()
        generator = torch.Generator().manual_seed(
            int.from_bytes(key[:7], "little"))
        labels = torch.randint(_CLASSES, (_IMAGES,), generator=generator)
        noise = torch.randn(_IMAGES, 1, _SIDE, _SIDE, generator=generator)
        return self._patterns[labels] + _NOISE * noise, labels

    def loss(self, model: nn.Module, inputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(model(inputs), targets)

    def learning_rate(self, step: int, steps: int) -> float:
        return self.LEARNING_RATE

    def evaluate(self, model: nn.Module) -> float:
        """With the running statistics, on images that nobody trained on."""
        model.eval()
        with torch.no_grad():
            return sum(self.loss(model, *self.batch(0, 0, k)).item()
                       for k in range(_EVALUATED)) / _EVALUATED


class Gpt:
    """The quickstart's."""

    LEARNING_RATE = gpt.LEARNING_RATE

    def __init__(self) -> None:
        self._text, self._num_kinds = gpt.load_text()

    def model(self) -> nn.Module:
        return gpt.Gpt(self._num_kinds)

    def batch(self, seed: int, step: int, rank: int) -> Tuple[Any, Any]:
        return gpt.batch(self._text, seed, step, rank)

    def loss(self, model: Any, inputs: Any, targets: Any) -> Any:
        return model.loss(inputs, targets)

    def learning_rate(self, step: int, steps: int) -> float:
        return gpt.learning_rate(step, steps)

    def evaluate(self, model: Any) -> float:
        return gpt.evaluate(model, self._text)


TASKS = {"gpt": Gpt, "conv": Conv}
