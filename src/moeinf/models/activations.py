"""The functions between the matrices of an MLP, under the names that config.json has for them."""

from __future__ import annotations

from typing import Final

from moeinf.models.fields import Fields
from moeinf.types import Activation, Json

# Of transformers' many names for a function, those that differ in how it is computed are one here.
ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
SILU: Final = tuple(name for name, function in ACTIVATIONS.items() if function == "silu")


def activation_of(f: Fields, name: str = "hidden_act", default: Activation = "silu") -> Activation:
    """What a field says; null or absent gives the family's default. Raises UnsupportedModelError for another one."""
    value: Json = f.get(name)
    if value is None:
        return default
    f.only(name, *ACTIVATIONS)
    return ACTIVATIONS[value]


def silu_alone(f: Fields, name: str = "hidden_act") -> None:
    """Refuses another function, in a family that has it where moeinf computes this one alone."""
    f.only(name, *SILU, None)
