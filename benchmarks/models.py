"""The standard models, with random weights: nothing is downloaded. Runs in the measured process.

nanogpt, BERT and ResNet-50 are those of PyTorch's TorchCache benchmark (benchmarks/dynamo/cachebench.py).
`model(name, size)` makes each; `pieces` is a small one of three graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODELS", "model", "pieces"]

Case = tuple[nn.Module, Any]
"""A model and its inputs: a tuple, or a dict of keyword arguments."""


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.inward(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outward(mixed.transpose(1, 2).reshape(batch, length, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.before_network = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.network(self.before_network(x))


class NanoGPT(nn.Module):
    """A GPT-2 as in Karpathy's nanoGPT: tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, *, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _Bottleneck(nn.Module):
    def __init__(self, inward: int, width: int, stride: int, *, projects: bool) -> None:
        super().__init__()
        outward = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(inward, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outward, 1, bias=False),
            nn.BatchNorm2d(outward),
        )
        self.short_cut = nn.Identity()
        if projects:
            self.short_cut = nn.Sequential(
                nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.path(x) + self.short_cut(x))


class ResNet50(nn.Module):
    """ResNet-50 (He et al., 2015, with the stride on the 3×3): images (batch, 3, height, width) to logits.

    `width` is the number of channels of the first layer: 64 in the original, whose later stages double
    it and halve the image. With `alike` they do neither, which leaves all layers and fewer kernels.
    """

    def __init__(self, *, width: int, classes: int, alike: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        channels = width
        for stage, depth in enumerate((3, 4, 6, 3)):
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 and not alike else 1
                stage_width = width if alike else width << stage
                layers.append(_Bottleneck(channels, stage_width, stride, projects=number == 0))
                channels = 4 * stage_width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


class Pieces(nn.Module):
    """A perceptron that Dynamo compiles as three graphs: what starts quickly in many processes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.layers
        x = functional.gelu(first(x))
        torch._dynamo.graph_break()
        x = functional.silu(second(x)).softmax(-1)
        torch._dynamo.graph_break()
        return functional.layer_norm(third(x), (32,))


def pieces() -> tuple[nn.Module, Tensor]:
    """Return a small model of three graphs, and its input."""
    return Pieces(), torch.randn(8, 32)


def _nanogpt(size: str) -> Case:
    if size == "full":
        model = NanoGPT(layers=12, width=768, heads=12, context=1024, vocabulary=50304)
        return model, (_tokens(8, 1024, 50304),)
    model = NanoGPT(layers=6, width=192, heads=6, context=64, vocabulary=512)
    return model, (_tokens(4, 64, 512),)


def _resnet50(size: str) -> Case:
    if size == "full":
        return ResNet50(width=64, classes=1000), (torch.randn(32, 3, 224, 224),)
    return ResNet50(width=16, classes=100, alike=True), (torch.randn(8, 3, 64, 64),)


def _bert(size: str) -> Case:
    from transformers import BertConfig, BertForMaskedLM

    shape = {
        "full": {},
        "small": {
            "hidden_size": 128,
            "intermediate_size": 512,
            "max_position_embeddings": 128,
            "num_attention_heads": 4,
            "vocab_size": 1000,
        },
    }[size]
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **shape)
    tokens = _tokens(*((8, 512) if size == "full" else (2, 64)), config.vocab_size)
    return BertForMaskedLM(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _gpt2(size: str) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {
        "full": {},
        "small": {"n_embd": 256, "n_head": 4, "n_positions": 128, "vocab_size": 1000},
    }[size]
    config = GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False, **shape)
    tokens = _tokens(*((4, 512) if size == "full" else (2, 64)), config.vocab_size)
    return GPT2LMHeadModel(config), {"input_ids": tokens}


def _llama(size: str) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "full": {  # that of Llama 3.2 1B
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
            "vocab_size": 128256,
        },
        "small": {
            "hidden_size": 256,
            "intermediate_size": 512,
            "max_position_embeddings": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 12,
            "num_key_value_heads": 2,
            "vocab_size": 1000,
        },
    }[size]
    config = LlamaConfig(use_cache=False, **shape)
    tokens = _tokens(*((1, 512) if size == "full" else (2, 64)), config.vocab_size)
    return LlamaForCausalLM(config), {"input_ids": tokens}


def _tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (batch, length))


MODELS: Mapping[str, Callable[[str], Case]] = {
    "nanogpt": _nanogpt,
    "bert": _bert,
    "resnet50": _resnet50,
    "gpt2": _gpt2,
    "llama": _llama,
}


def model(name: str, size: str, device: str) -> Case:
    """Return a standard model, `small` or `full`, and its inputs."""
    with torch.device(device):  # a CPU takes half a minute for a billion random numbers
        return MODELS[name](size)
