"""The sizes of a gated DeltaNet layer (delta_net.py), which every device's layers are told."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import NormKind, Shapes
from moeinf.types import DeltaSizes, Workspace

SLICE = 128  # tokens that are projected at once: there are many channels, and room for few activations


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    hidden_size: int
    num_key_heads: int
    num_value_heads: int  # each key head serves as many of them, one behind the other
    key_dim: int
    value_dim: int
    kernel: int  # tokens that the convolution in front sees
    norm_eps: float
    stacked: bool  # one projection with the rows of each key head together (in_proj_qkvz, in_proj_ba), or four
    joined: bool = False  # the four are one matrix (in_proj), one behind the other
    norm: NormKind = "rms+1"  # in front
    sigmoid_gates: bool = False  # sigmoid(gate), not silu(gate), multiplies what a head gives

    @staticmethod
    def parse(f: Fields, hidden_size: int, norm_eps: float, *, stacked: bool) -> DeltaConfig:
        silu_alone(f)  # which convolutions have, too
        keys, values = f.count("linear_num_key_heads", 16), f.count("linear_num_value_heads", 32)
        if values % keys:
            raise CheckpointError(f"config.json: linear_num_key_heads {keys} cannot serve {values} value heads")
        return DeltaConfig(
            hidden_size,
            keys,
            values,
            f.count("linear_key_head_dim", 128),
            f.count("linear_value_head_dim", 128),
            f.count("linear_conv_kernel_dim", 4, minimum=2),
            norm_eps,
            stacked,
        )

    def projections(self, prefix: str) -> dict[str, tuple[int, ...]]:
        """Names of the matrices in front, and of each how many rows those have that lie in it one behind the other."""
        heads = self.num_value_heads
        if self.stacked:
            return {
                f"{prefix}in_proj_qkvz.weight": (self.channels + self.values,),
                f"{prefix}in_proj_ba.weight": (2 * heads,),
            }
        rows = {"qkv": self.channels, "z": self.values, "b": heads, "a": heads}
        if self.joined:
            return {f"{prefix}in_proj.weight": (*rows.values(),)}
        return {f"{prefix}in_proj_{name}.weight": (count,) for name, count in rows.items()}

    @property
    def keys(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        conv = (self.kernel - 1) * self.channels
        return 2 * 4 * (conv + self.num_value_heads * self.key_dim * self.value_dim)


def delta_workspace(c: DeltaConfig) -> Workspace:
    """What DeltaNet holds: input, output, projections, the convolution and what is made of it."""
    sizes = DeltaSizes(c.hidden_size, c.num_key_heads, c.num_value_heads, c.key_dim, c.value_dim)
    return Workspace(fixed=SLICE * (2 * c.hidden_size + 4 * c.channels + 5 * c.values), layers=frozenset([sizes]))


def delta_shapes(c: DeltaConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that DeltaNet takes."""
    shapes: Shapes = {
        f"{prefix}A_log": (c.num_value_heads,),
        f"{prefix}dt_bias": (c.num_value_heads,),
        f"{prefix}conv1d.weight": (c.channels, 1, c.kernel),
        f"{prefix}norm.weight": (c.value_dim,),
        f"{prefix}out_proj.weight": (c.hidden_size, c.values),
    }
    return shapes | {name: (sum(rows), c.hidden_size) for name, rows in c.projections(prefix).items()}
