"""The models of `tfdp.models` for PyTorch, with Opacus' own layers where Opacus needs them."""

import protocol
import torch
from torch import nn


def build(name, private):
    """Builds a model.

    Args:
        name: The name of a model in `protocol.SHAPES`.
        private: Whether LSTM and attention are Opacus' layers.
    """
    return _MODELS[name](private)


def _mlp(_):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, protocol.CLASSES)
    )


def _tutorial_cnn(_):
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, protocol.CLASSES),
    )


def _lenet5(_):
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, protocol.CLASSES),
    )


def _cifar_tutorial(_):
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 384),
        nn.ReLU(),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Linear(384, protocol.CLASSES),
    )


class _Residual(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.GroupNorm(32, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.GroupNorm(32, width),
        )
        self.shortcut = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.GroupNorm(32, width)
            )

    def forward(self, x):
        return torch.relu(self.convs(x) + self.shortcut(x))


def _resnet18(_):
    blocks, before = [], 64
    for width in (64, 128, 256, 512):
        for number in range(2):
            blocks.append(_Residual(before, width, 2 if width > 64 and number == 0 else 1))
            before = width
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.GroupNorm(32, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, protocol.CLASSES),
    )


class _BiLSTM(nn.Module):
    def __init__(self, private):
        super().__init__()
        self.embedding = nn.Embedding(protocol.TOKENS, 64)
        lstm = nn.LSTM
        if private:
            from opacus.layers import DPLSTM as lstm
        self.lstm = lstm(64, 64, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, protocol.CLASSES))

    def forward(self, tokens):
        outputs, _ = self.lstm(self.embedding(tokens))
        # Keras returns the last state of each direction. The backward direction ends at the first
        # token.
        return self.head(torch.cat([outputs[:, -1, :64], outputs[:, 0, 64:]], dim=1))


class _Block(nn.Module):
    def __init__(self, private):
        super().__init__()
        attention = nn.MultiheadAttention
        if private:
            from opacus.layers import DPMultiheadAttention as attention
        self.norm_1, self.norm_2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.attention = attention(64, 4, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.dense(self.norm_2(x))


class _Transformer(nn.Module):
    def __init__(self, private):
        super().__init__()
        length = protocol.SHAPES["transformer"][0]
        self.embedding = nn.Embedding(protocol.TOKENS, 64)
        self.position = nn.Embedding(length, 64)
        self.blocks = nn.Sequential(_Block(private), _Block(private))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, protocol.CLASSES)

    def forward(self, tokens):
        # Opacus takes the first axis as the axis of examples, so the positions need this axis.
        positions = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        x = self.blocks(self.embedding(tokens) + self.position(positions))
        return self.head(self.norm(x).mean(dim=1))


_MODELS = {
    "mlp": _mlp,
    "tutorial_cnn": _tutorial_cnn,
    "lenet5": _lenet5,
    "cifar_tutorial": _cifar_tutorial,
    "resnet18": _resnet18,
    "bilstm": _BiLSTM,
    "transformer": _Transformer,
}
