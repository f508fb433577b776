"""LongCat-Flash-Lite in plain torch: transformers' LongCat-Flash, given means of what tokens and n-grams embed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class NgramEmbedding(nn.Module):
    """Looked up one token, one order and one table at a time."""

    def __init__(self, config: dict[str, Any], words: nn.Embedding) -> None:
        super().__init__()
        self.ids, self.orders, self.splits = config["vocab_size"], config["emb_neighbor_num"], config["emb_split_num"]
        self.end, hidden = config["eos_token_id"], config["hidden_size"]
        count = self.splits * (self.orders - 1)
        sizes = [config["ngram_vocab_size_ratio"] * self.ids + 2 * i + 1 for i in range(count)]
        self.embedders = nn.ModuleList(nn.Embedding(size, hidden // count) for size in sizes)
        self.post_projs = nn.ModuleList(nn.Linear(hidden // count, hidden, bias=False) for _ in sizes)
        self.words = [words]  # no module of this one: it has a name already

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack([self._of(row.tolist()) for row in ids])

    def _of(self, ids: list[int]) -> Tensor:
        rows = []
        for at, token in enumerate(ids):
            total = self.words[0].weight[token]
            for order in range(2, self.orders + 1):
                number = token
                for back in range(1, order):
                    if at - back < 0 or ids[at - back] == self.end:
                        break
                    number += ids[at - back] * self.ids**back
                for split in range(self.splits):
                    table = (order - 2) * self.splits + split
                    embedder, projection = self.embedders[table], self.post_projs[table]
                    total = total + projection(embedder.weight[number % embedder.num_embeddings])
            rows.append(total / (1 + len(self.embedders)))
        return torch.stack(rows)
