"""Rotary positions in a part of each head, spelled out in the math of either device."""

from __future__ import annotations

from moeinf.models.layers.array_math import A, ArrayMathOf


def turned_in_front(math: ArrayMathOf[A], x: A, cos: A, sin: A, *, interleaved: bool = False) -> A:
    """x [tokens, heads, head_dim], rotated at the beginnings of heads; cos, sin [tokens, rotary_dim / 2]."""
    half, cos, sin = cos.shape[1], cos[:, None], sin[:, None]
    front, rest = x[..., : 2 * half], x[..., 2 * half :]
    left, right = (front[..., ::2], front[..., 1::2]) if interleaved else (front[..., :half], front[..., half:])
    turned = [left * cos - right * sin, right * cos + left * sin]
    if interleaved:
        turned = [math.concatenate([each[..., None] for each in turned], -1).reshape(*front.shape)]
    return math.concatenate([*turned, rest], -1)


def turned_at_end(math: ArrayMathOf[A], x: A, cos: A, sin: A, *, interleaved: bool) -> A:
    """The same at the ends of heads."""
    size = 2 * cos.shape[1]
    end = turned_in_front(math, x[..., -size:], cos, sin, interleaved=interleaved)
    return math.concatenate([x[..., :-size], end], -1)
