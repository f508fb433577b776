"""A chat in which somebody typed control tokens has the ids of the whole text, with these in letters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from moeinf.text.encoding import Encoder
from moeinf.text.templates.rendering import marked, split_marked
from moeinf.text.templates.traced import GIVEN, OWN, Traced
from tests.support.vocabularies import built, pieces

CONTROL = ["<s>", "</s>", "<u>"]
# What stands for each in the reference, where those that were typed are no tokens: characters that no text has.
STANDS_FOR = dict(zip(CONTROL, "\ue000\ue001\ue002", strict=True))
LETTERS = "abcsu<>/[] \u2581\n\u0120\u010a"
WORDS = ["<s", "</", "s>", "ab", "abc", "▁a", "▁ab", "▁[", "a▁b", "▁▁", "Ġa", "/s", "▁<"]


def metaspace(scheme: Any, split: bool) -> PreTokenizer:
    return pre_tokenizers.Metaspace("\u2581", scheme, split)


SCHEMES = ("always", "first", "never")
PRE_TOKENIZERS: dict[str, PreTokenizer | None] = {
    **{f"{scheme} {each}": metaspace(scheme, each) for scheme in SCHEMES for each in (True, False)},
    "words, then first": pre_tokenizers.Sequence([pre_tokenizers.Split("a", "isolated"), metaspace("first", False)]),
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "bytes with a space": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "none": None,
}
NORMALIZERS: dict[str, Normalizer | None] = {
    "none": None,
    "prepended": normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
    "stripped": normalizers.Strip(),
}


def tokenizer(pre: PreTokenizer | None, normal: Normalizer | None, swallows: bool, names: list[str]) -> Tokenizer:
    """Of these control tokens, with ids in their order."""
    tokens = [*names, "<unk>", *LETTERS, *WORDS]
    merges = [
        (word[:at], word[at:])
        for word in WORDS
        for at in range(1, len(word))
        if word[:at] in tokens and word[at:] in tokens
    ]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>"))
    if pre is not None:
        made.pre_tokenizer = pre
    if normal is not None:
        made.normalizer = normal
    first, second, third = names
    made.add_special_tokens(
        [
            AddedToken(first, special=True, normalized=False),
            AddedToken(second, special=True, normalized=False, lstrip=swallows),
            AddedToken(third, special=True, normalized=False, rstrip=swallows),
        ]
    )
    return made


# Parts of a text: control tokens, with whether the template wrote them, and words.
PARTS = st.lists(
    st.tuples(st.sampled_from(CONTROL), st.booleans())
    | st.tuples(st.text(alphabet="abcsu<>/[]  \n", min_size=1, max_size=6) | st.just(" "), st.just(False)),
    max_size=8,
)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("normal", NORMALIZERS)
@pytest.mark.parametrize("swallows", [False, True])
def test_ids_are_those_of_the_whole_text_with_typed_tokens_in_letters(pre: str, normal: str, swallows: bool) -> None:
    chosen = PRE_TOKENIZERS[pre], NORMALIZERS[normal], swallows
    encoder, reference = Encoder(tokenizer(*chosen, CONTROL)), tokenizer(*chosen, list(STANDS_FOR.values()))

    @given(PARTS)
    @settings(max_examples=100 if swallows else 30, deadline=None, derandomize=True)
    def same(parts: list[tuple[str, bool]]) -> None:
        rendered = marked(Traced().join([Traced(word, OWN if own else GIVEN) for word, own in parts]), CONTROL)
        meant = "".join(STANDS_FOR[word] if own else word for word, own in parts)
        found = encoder.ids(list(joined(rendered)), specials=False)
        assert found == reference.encode(meant, add_special_tokens=False).ids

    same()


def joined(rendered: str, control: list[str] = CONTROL) -> list[tuple[str, bool]]:
    """As the worker joins pieces of one kind."""
    found: list[tuple[str, bool]] = []
    for text, plain in split_marked(rendered, control):
        if found and found[-1][1] == plain:
            found[-1] = (found[-1][0] + text, plain)
        else:
            found.append((text, plain))
    return found


@pytest.mark.parametrize("architecture", ["llama", "phimoe"])  # of the latter, tokens swallow the space behind them
@pytest.mark.parametrize("model", ["llama", "gemma4"])
def test_so_it_is_with_tokenizers_made_of_gguf_files(architecture: str, model: str) -> None:
    fields = pieces(model=model, merges=["a b", "\u2581 a", "\u2581a b"], bos_token_id=1)
    fields |= {"general.architecture": architecture, "tokenizer.ggml.add_bos_token": False}
    renamed = ["\ue001" if token == "</s>" else token for token in fields["tokenizer.ggml.tokens"]]
    encoder, reference = Encoder(built(fields)), built(fields | {"tokenizer.ggml.tokens": renamed})

    @given(PARTS)
    @settings(max_examples=150, deadline=None, derandomize=True)
    def same(parts: list[tuple[str, bool]]) -> None:
        kept = [("ab", False) if word in ("<s>", "<u>") else (word, own) for word, own in parts]
        rendered = marked(Traced().join([Traced(word, OWN if own else GIVEN) for word, own in kept]), ["</s>"])
        meant = "".join("\ue001" if own else word for word, own in kept)
        found = encoder.ids(list(joined(rendered, ["</s>"])), specials=False)
        assert found == reference.encode(meant, add_special_tokens=False).ids

    same()
