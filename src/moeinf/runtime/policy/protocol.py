"""What an eviction policy and a predictor are told, and what they answer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from moeinf.types import FloatArray, IntArray, Phase


class EvictionPolicy(Protocol):
    """Told every routing in order; scores every expert. The cache keeps what scores high.

    begin("prefill") starts a request, begin("decode") its second phase; a further begin("decode") changes nothing.
    """

    name: str

    def begin(self, phase: Phase) -> None: ...

    def observe(self, layer: int, ids: IntArray) -> None:
        """Takes the routing `ids` [tokens, top_k] of `layer`; the ids of one token are distinct."""
        ...

    def keep_scores(self, layer: int) -> FloatArray:
        """Scores [L, E] right after observe(layer, ..): the smallest leaves first; see choose_victims.

        The array belongs to the policy: read-only for the caller, and valid until the next observe.
        """
        ...


class TokenScores(NamedTuple):
    """The scores by which a device chooses victims for a whole token, while the host learns nothing."""

    scores: FloatArray  # [L, E], but for the distance: belongs to the policy as those of keep_scores do
    used: float  # what the score of an expert that the token uses rises to, where it is lower


class DevicePolicy(EvictionPolicy, Protocol):
    """An eviction policy whose scores a device can finish, and that can do with a part of the routings."""

    @property
    def step(self) -> int:
        """From a score a device takes the number of layers until the expert's own, of a step of so many; 0: nothing."""
        ...

    def restart(self) -> None:
        """Says that routings were left out: the next is of another pass, and follows none that was told."""
        ...

    def token_scores(self) -> TokenScores:
        """The scores for the next token; called after the observation of a token's last layer."""
        ...


class Predictor(Protocol):
    """Told every routing in order, or where some were left out; asked after that of `layer` what those behind it use.

    begin("prefill") starts a request, begin("decode") its second phase; a further begin("decode") changes nothing.
    """

    @property
    def name(self) -> str: ...

    def begin(self, phase: Phase) -> None: ...

    def observe(self, layer: int, ids: IntArray) -> None:
        """Takes the routing `ids` [tokens, top_k] of `layer`."""
        ...

    def restart(self) -> None:
        """Does as DevicePolicy.restart."""
        ...

    def predict(self, layer: int) -> FloatArray | None:
        """Likelihood [n, E] that a token uses each expert of the n layers behind `layer`, as far as the predictor sees.

        Read-only for the caller, and valid until the next observe. None without evidence.
        """
        ...


Adviser = DevicePolicy | Predictor  # told of layers in which an expert can be missing, and that others were left out
