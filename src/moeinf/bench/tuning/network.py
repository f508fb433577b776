"""The network in torch: what is trained, and the slow twin of TunedUse. docs/lab/policies.md has the formulas."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from moeinf.runtime.policy.tuned import weight_shapes
from moeinf.types import Float32Array, MoeShape

HALF_LIVES: Final = (4.0, 32.0)  # tokens, of the decayed means of the tokens before
DROPPED: Final = 0.2  # share of the hidden units left out at each step of training


class UseNetwork(torch.nn.Module):
    """Logits that an expert is used by the next token, and by any of the next four."""

    def __init__(self, shape: MoeShape, generator: torch.Generator) -> None:
        """Begins where its answer is that of UseModel."""
        super().__init__()
        shapes = weight_shapes(shape)
        width = shapes["hidden"][0]

        def drawn(name: str, scale: float) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(shapes[name], generator=generator) * scale)

        def zeros(name: str) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.zeros(shapes[name]))

        self.token, self.own = drawn("token", 0.1), drawn("own", 0.1)
        self.contexts, self.hidden = drawn("contexts", width**-0.5), drawn("hidden", width**-0.5)
        self.bias, self.head, self.head_bias = zeros("bias"), zeros("head"), zeros("head_bias")
        direct = torch.zeros(shapes["direct"])
        direct[:, 0, 0] = direct[:, 1, 1] = 1
        self.direct = torch.nn.Parameter(direct)
        self._generator = generator

    def forward(self, used: Tensor, frequency: Tensor, evidence: Tensor) -> Tensor:
        """Logits [L, passes, 2, E] of consecutive passes.

        used [1 + passes, L, E]: the pass before them first. frequency [half-lives, L, E]: decayed means of what was
        used before the first. evidence [passes, L, rows, E].
        """
        by_layer = used.transpose(0, 1)
        said = torch.bmm(by_layer, self.token)  # [L, 1 + passes, D]
        whole = said.sum(0)
        so_far = said[:, 1:].cumsum(0)
        before = whole[:-1] @ self.contexts[1]
        passes = torch.arange(len(used) - 1)
        ago = passes[:, None] - 1 - passes[None]
        for number, half_life in enumerate(HALF_LIVES):
            decay = 2 ** (-1 / half_life)
            first = torch.einsum("le,led->d", frequency[number], self.token)
            shares = torch.tril((1 - decay) * decay ** ago.clamp(min=0).float(), -1)
            means = decay ** passes[:, None].float() * first + shares @ whole[1:]
            before = before + means @ self.contexts[2 + number]
        own = torch.bmm(by_layer[:, 1:], self.own)
        state = functional.relu(so_far @ self.contexts[0] + before + own + self.bias[:, None])
        state = state + functional.relu(state @ self.hidden)
        if self.training:
            state = state * (torch.rand(state.shape, generator=self._generator) >= DROPPED) / (1 - DROPPED)
        logits = torch.bmm(state, self.head) + self.head_bias[:, None]
        layers, num_passes, _ = logits.shape
        direct = torch.einsum("plre,lrh->lphe", evidence, self.direct)
        return logits.view(layers, num_passes, 2, -1) + direct

    def weights(self) -> dict[str, Float32Array]:
        """As TunedUse takes them."""
        return {name: each.detach().numpy().copy() for name, each in self.named_parameters()}
