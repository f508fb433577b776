"""The sizes of a Mamba-2 layer (mamba2.py), which every device's layers are told."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import Shapes, linear_shapes
from moeinf.types import MambaSizes, Workspace

SLICE = 128  # tokens that are projected at once: there are many channels, and room for few activations
_ANY_STEP = 1e30  # a limit that no step reaches


@dataclass(frozen=True, slots=True)
class MambaConfig:
    hidden_size: int
    num_heads: int
    head_dim: int
    num_groups: int  # of heads, one behind the other, that share keys and queries
    state_size: int  # of a key
    kernel: int  # tokens that the convolution sees
    norm_eps: float
    conv_bias: bool
    biased: bool = False  # what is projected in and out

    def __post_init__(self) -> None:
        if self.num_heads % self.num_groups:
            raise CheckpointError(
                f"config.json: {self.num_heads} heads of Mamba cannot share the keys of {self.num_groups} groups "
                "(mamba_n_groups, or n_groups)"
            )
        if self.kernel < 2:
            raise CheckpointError(
                f"config.json: the convolution of Mamba sees {self.kernel} token; moeinf computes those of two or more "
                "(mamba_d_conv, or conv_kernel)"
            )

    @property
    def inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values, keys and queries."""
        return self.inner + 2 * self.num_groups * self.state_size

    @property
    def conv_shape(self) -> tuple[int, int]:
        return (self.kernel - 1, self.channels)

    @property
    def heads_shape(self) -> tuple[int, int, int]:
        return (self.num_heads, self.state_size, self.head_dim)

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        return 2 * 4 * ((self.kernel - 1) * self.channels + self.inner * self.state_size)


def refuse_step_limits(f: Fields) -> None:
    """Steps between 0 and any number, as all that is published has them; other limits would bind prompts alone."""
    limits = f.get("time_step_limit")
    if limits is None:
        return
    if isinstance(limits, list) and len(limits) == 2 and limits[0] == 0:
        most = limits[1].get("__float__") if isinstance(limits[1], dict) else limits[1]  # as transformers 5 writes it
        if most == "Infinity" or (isinstance(most, (int, float)) and most >= _ANY_STEP):
            return
    raise UnsupportedModelError(
        f"{f.where}: time_step_limit = {limits!r:.100} is not supported (only from 0 to Infinity)"
    )


def mamba_workspace(c: MambaConfig) -> Workspace:
    """What Mamba-2 holds: input, output, the projection, the convolution and what is made of it."""
    sizes = MambaSizes(c.hidden_size, c.num_heads, c.head_dim, c.num_groups, c.state_size)
    return Workspace(fixed=SLICE * (2 * c.hidden_size + 4 * c.channels + 6 * c.inner), layers=frozenset([sizes]))


def mamba_shapes(c: MambaConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that Mamba-2 takes."""
    shapes: Shapes = {
        f"{prefix}A_log": (c.num_heads,),
        f"{prefix}D": (c.num_heads,),
        f"{prefix}dt_bias": (c.num_heads,),
        f"{prefix}conv1d.weight": (c.channels, 1, c.kernel),
        f"{prefix}norm.weight": (c.inner,),
    }
    shapes |= linear_shapes(f"{prefix}in_proj", c.inner + c.channels + c.num_heads, c.hidden_size, biased=c.biased)
    shapes |= linear_shapes(f"{prefix}out_proj", c.hidden_size, c.inner, biased=c.biased)
    return shapes | ({f"{prefix}conv1d.bias": (c.channels,)} if c.conv_bias else {})
