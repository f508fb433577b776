"""What an eviction policy and a predictor are told, and what they answer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from moeinf.types import Float32Array, FloatArray, IntArray, Phase


class Listener(Protocol):
    """Is told what a model routes to, layer by layer, in order: a policy, a predictor, a recorder, whoever watches.

    A class that names it as a base takes from here what it has no use for; what it wants, it says once for all.
    begin("prefill") starts a request, begin("decode") its second phase, and where there is an encoder begin("encode")
    comes before both; a further begin of the same phase of a request changes nothing.
    """

    wants_weights: bool = False
    wants_guesses: bool = False

    def begin(self, phase: Phase) -> None:
        return

    def observe(self, layer: int, ids: IntArray) -> None:
        """Takes the routing `ids` [tokens, top_k] of `layer`; the ids of one token are distinct.

        The array is the caller's again afterwards.
        """
        return

    def routed(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        """Takes a routing with its weights [tokens, top_k], which mean nothing unless it wants them."""
        self.observe(layer, ids)

    def expect(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        """Takes the model's guess at the routing of a later layer, [tokens, top_k] both, if it wants guesses."""
        return

    def restart(self) -> None:
        """Says that routings were left out: the next is of another pass, and follows none that was told."""
        return


class EvictionPolicy(Listener, Protocol):
    """Told every routing in order; scores every expert. The cache keeps what scores high."""

    name: str

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

    def token_scores(self) -> TokenScores:
        """The scores for the next token; called after the observation of a token's last layer."""
        ...


class Predictor(Listener, Protocol):
    """Told every routing in order, or that some were left out; asked after that of `layer` what those behind it use."""

    name: str

    def predict(self, layer: int) -> FloatArray | None:
        """Likelihood [n, E] that a token uses each expert of the n layers behind `layer`, as far as the predictor sees.

        Read-only for the caller, and valid until the next observe. None without evidence.
        """
        ...
