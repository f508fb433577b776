"""A text that is too long to be embedded loses its end, and keeps the tokens that the tokenizer puts around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import processors

from moeinf.errors import ContextLengthError
from moeinf.server.ask import Inputs
from moeinf.server.prompt.embedded_ids import embedded_ids
from moeinf.text.tokenizer import Tokenizer
from tests.support.footprints import INFO
from tests.support.text_models import byte_level_tokenizer, write_text_model


@pytest.mark.parametrize("around", ["$A", "<s> $A", "$A </s>", "<s> $A </s>"])
def test_the_tokens_around_a_text_stay(tmp_path: Path, around: str) -> None:
    library = byte_level_tokenizer(["<s>", "</s>"])
    known = [(name, library.token_to_id(name)) for name in ("<s>", "</s>")]
    library.post_processor = processors.TemplateProcessing(single=around, pair=f"{around} $B", special_tokens=known)
    with Tokenizer(write_text_model(tmp_path, tokenizer=library)) as tokenizer:
        long, cut, short = embedded_ids(Inputs(["abcdefgh", "abcdefgh", "ab"], cut=0), tokenizer, INFO, 7)
        assert long == cut and short == tokenizer.encode("ab")
        assert [len(each) for each in embedded_ids(Inputs(["abc", "abc"], cut=2), tokenizer, INFO, 7)] == [1, 1]
        for size in (3, 5, 7):
            (found,) = embedded_ids(Inputs(["abcdefgh"], cut=size + 1), tokenizer, INFO, 100)
            library.enable_truncation(size)
            assert found == library.encode("abcdefgh").ids
        with pytest.raises(ContextLengthError):
            next(embedded_ids(Inputs(["abcdefgh"]), tokenizer, INFO, 7))
