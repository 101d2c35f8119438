"""Transformers: an encoder, a decoder in training, and a decoder that generates token by token."""

import torch
from torch import nn
from torch.nn import functional

from weft.lab.workloads.catalog import Sizes, Step
from weft.lab.workloads.steps import DevicePlace, inference, training

WORDS = 32_000


class Block(nn.Module):
    """Pre-norm attention and feed-forward layers, each with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, text: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Process the whole text at once; `mask` is added to the attention weights."""
        query, key, value = self.split(text)
        text = text + self.attend(query, key, value, mask)
        return text + self.layers(self.behind(text))

    def split(self, text: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return query, key and value, each [batch, heads, length, width of a head]."""
        batch, length = text.shape[:2]
        parts = self.project(self.before(text)).view(batch, length, 3, self.heads, -1)
        return tuple(part.transpose(1, 2) for part in parts.unbind(2))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attention output for each position."""
        weights = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if mask is not None:
            weights = weights + mask
        attended = torch.softmax(weights, -1).to(value.dtype) @ value
        return self.join(attended.transpose(1, 2).flatten(2))


class LanguageModel(nn.Module):
    """Maps tokens to logits over the vocabulary."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, sizes["width"])
        width, heads = sizes["width"], sizes["heads"]
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(sizes["layers"]))
        self.last = nn.Linear(sizes["width"], WORDS)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Process all tokens at once."""
        text = self.words(tokens)
        for block in self.blocks:
            text = block(text, mask)
        return self.last(text)


def encoder_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step in which every position attends to the whole text."""
    return _learning(place, sizes, None)


def decoder_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step in which every position attends to itself and earlier ones only."""
    length = sizes["length"]
    mask = torch.full((length, length), float("-inf"), device=place.device).triu(1)
    return _learning(place, sizes, mask)


def encoder_inference(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a forward step over whole texts."""
    tokens = place.indexes(WORDS, sizes["batch"], sizes["length"])
    return inference(place.put(LanguageModel(sizes)), [tokens], place)


def decoder_inference(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step that generates one token with cached keys and values; a full text is restarted.

    Each token is copied to the host, as a server does to send it."""
    model = place.put(LanguageModel(sizes))
    if place.on_gpu:
        model = model.to(torch.bfloat16)
    model.eval()
    cache = _kept(model, place, sizes)
    first = sizes["length"] // 2
    past, token = first, place.indexes(WORDS, sizes["batch"], 1)

    def step() -> None:
        nonlocal past, token
        with torch.inference_mode():
            text = model.words(token)
            for block, (keys, values) in zip(model.blocks, cache, strict=True):
                query, key, value = block.split(text)
                keys[:, :, past : past + 1], values[:, :, past : past + 1] = key, value
                text = text + block.attend(query, keys[:, :, : past + 1], values[:, :, : past + 1])
                text = text + block.layers(block.behind(text))
            token = model.last(text).argmax(-1)
            token[0, 0].item()
        past = past + 1 if past + 1 < sizes["length"] else first

    return step


def _kept(
    model: nn.Module, place: DevicePlace, sizes: Sizes
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a cache of every block's keys and values, as if half a text had been generated."""
    heads = sizes["heads"]
    shape = (sizes["batch"], heads, sizes["length"], sizes["width"] // heads)
    kind = model.last.weight.dtype
    return [(place.numbers(*shape).to(kind), place.numbers(*shape).to(kind)) for _ in model.blocks]


def _learning(place: DevicePlace, sizes: Sizes, mask: torch.Tensor | None) -> Step:
    model = place.put(LanguageModel(sizes))
    tokens = place.indexes(WORDS, sizes["batch"], sizes["length"])

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(tokens, mask).flatten(0, 1), tokens.flatten())

    return training([model], loss, place)
