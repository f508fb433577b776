"""Which tokens may come next in an answer that has a form: grammars for llguidance, run in the text worker.

A grammar says what may come before the answer (thoughts, which are free), and then the answer: JSON of a schema or
text of another language, which may stand between literal texts, or a call of a tool, of which only the beginning is
held. It is written as Lark, with llguidance's additions: `%json` is a schema, `<[5]>` the token 5, and `<[^5]>` every
token but it. Why here: a schema comes from anybody who sends a request, and the table of tokens from tokenizer.json.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from moeinf.errors import TextError
from moeinf.text.channels.xtml import CLOSE, OPEN, SEP, begun_in, is_xtml, marks_in
from moeinf.text.forms.held_calls import any_object, escaped, rules_of_calls
from moeinf.text.forms.json_space import AnswerStart, JsonSpace, SpaceTokens, token_name
from moeinf.text.forms.languages import GrammarError, expression
from moeinf.text.harmony_channels import in_head
from moeinf.text.thoughts import SOLAR_BEGIN, SOLAR_CONTENT, SOLAR_TAGS, Tags, state_behind, tag_ids
from moeinf.text.tool_calls.syntaxes.harmony_heads import CHANNEL, CONSTRAIN, END, MESSAGE, START
from moeinf.types import JsonMapping, JsonObject

# Text that has to come is otherwise made tokens at once, and the letters of a control token that one.
_BY_LETTERS = '%llguidance {"no_forcing": true}'
_NO_LETTER = b"\xff"  # with which token_name begins
_SPACE_BEFORE_ANSWER = r"/[ \n]{0,2}/"  # that models write behind their thoughts


class Around(NamedTuple):
    """What may stand around an answer, as expressions of Lark."""

    lead: str = ""  # thoughts
    head: str = ""  # what has to come before the answer
    call: str = ""  # a call of a tool instead of it
    rules: tuple[str, ...] = ()  # which these expressions use
    start: AnswerStart = AnswerStart()  # how the answer is found behind them


class Grammars:
    """The grammars for the tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> None:
        """Takes one to two seconds for 200,000 tokens. Raises TextError for a tokenizer that llguidance cannot read."""
        self._tokenizer, self._eos_ids = tokenizer, list(eos_ids)
        self._all_but = partial(_all_but, self._eos_ids)
        self._matchers: dict[int, LLMatcher] = {}  # of streams: how far their answers have come
        self._spaces: dict[int, JsonSpace] = {}  # of those whose answers are JSON
        try:
            self._table = LLTokenizer(tokenizer.to_str(), eos_token=self._eos_ids or None)
        except ValueError as error:
            raise TextError(
                f"the bytes of this model's tokens are not known ({error}); leave the format or logprobs out"
            ) from error

    def constrain(self, stream: int, around: Around, forms: Sequence[Mapping[str, str]]) -> JsonObject:
        """Gives the answer of a stream one of these forms; returns as `accept` does, or why the form is refused.

        forms: prefix, suffix, and what stands between them (see languages.py); [] where nothing but a call will do.
        """
        try:
            self._matchers[stream] = self._matcher(around, forms)
            if forms and all("schema" in form for form in forms):
                self._spaces[stream] = JsonSpace(around.start)
            return self._state(stream)
        except GrammarError as error:
            self.forget(stream)
            return {"refused": str(error)}

    def hold_calls(self, stream: int, around: Around, mark: str, forms: Sequence[Mapping[str, str]]) -> JsonObject:
        """Leaves the answer of a stream free, but for what follows `mark`, which each prefix of the forms begins with.

        Of a schema that cannot be followed any object will do. Returns as `accept` does.
        """
        tokenizer, calls = self._tokenizer, list[str]()
        for i, form in enumerate(forms):
            behind = {**form, "prefix": form["prefix"].removeprefix(mark)}
            try:
                _mask(self._compile([f"start: form{i}", *self._of_form(i, behind)]))
            except GrammarError:
                behind = any_object(behind)
            calls += self._of_form(i, behind)
        token = _literal(tokenizer, mark) if tokenizer.token_to_id(mark) is not None else None
        begins = around.start.opens
        letters = b"" if begins.startswith(_NO_LETTER) else begins
        whole = rules_of_calls(around.lead, letters, mark, token, _any_form(forms))
        self._matchers[stream] = self._compile([*whole, *calls, *around.rules])
        return self._state(stream)

    def _matcher(self, around: Around, forms: Sequence[Mapping[str, str]]) -> LLMatcher:
        if not forms:
            if not around.call:
                raise GrammarError("the model has no tools to call, or calls them in a way that is not known")
            return self._compile([f"start: {around.lead} {around.call}", *around.rules])
        of_forms = [rule for i, form in enumerate(forms) for rule in self._of_form(i, form)]
        rules = [f"answer: {_any_form(forms)}", *of_forms]
        alone = self._compile(["start: answer", *rules])
        if around == Around():
            return alone
        _mask(alone)  # tells of a schema that nothing matches
        or_call = f"| {around.call}" if around.call else ""
        return self._compile([f"start: {around.lead} ({around.head} answer {or_call})", *rules, *around.rules])

    def accept(self, stream: int, token: int) -> JsonObject:
        """Goes on behind a token. Returns complete: whether nothing may follow; mask: what may.

        Raises TextError where the grammar has grown beyond llguidance's limits.
        """
        self._matchers[stream].consume_token(token)
        if stream in self._spaces:
            self._spaces[stream].take(self._bytes_of(token))
        try:
            return self._state(stream)
        except GrammarError as error:
            self.forget(stream)
            raise TextError(f"the format cannot be followed any further ({error}); give a simpler schema") from error

    def _state(self, stream: int) -> JsonObject:
        """mask: one bit for each token, in base64."""
        matcher = self._matchers[stream]
        if matcher.is_stopped() and not matcher.is_error():
            return {"complete": True, "mask": ""}
        mask, space = _mask(matcher), self._spaces.get(stream)
        if space is not None and space.spent:
            mask = self._space_tokens.without(mask, space.place)
        return {"complete": False, "mask": base64.b64encode(mask).decode()}

    def forget(self, stream: int) -> None:
        self._matchers.pop(stream, None)
        self._spaces.pop(stream, None)

    def token_bytes(self, token: int) -> bytes:
        return bytes(self._table.decode_bytes([token]))

    @cached_property
    def _space_tokens(self) -> SpaceTokens:
        return SpaceTokens(list(map(self._bytes_of, range(self._table.vocab_size))))

    def _bytes_of(self, token: int) -> bytes:
        """As answers are read by json_space.py."""
        return token_name(token) if self._table.is_special_token(token) else self.token_bytes(token)

    def _written(self, text: str) -> bytes:
        """The same of the token that a text is, else its letters."""
        token = self._tokenizer.token_to_id(text)
        return text.encode() if token is None else self._bytes_of(token)

    def _of_form(self, i: int, form: Mapping[str, str]) -> list[str]:
        """The rules form0, inner0 and so on."""
        tokenizer = self._tokenizer
        prefix, suffix = (_literal(tokenizer, form[name]) for name in ("prefix", "suffix"))
        if "values" not in form:
            return [f"form{i}: {prefix} inner{i} {suffix}", f"inner{i}: {expression(form)}"]
        names, rules = [prefix], list[str]()
        for j, value in enumerate(json.loads(form["values"])):
            names.append(f"value{i}_{j}" if value["required"] else f"value{i}_{j}?")
            rules += _of_value(tokenizer, f"{i}_{j}", value, self._all_but)
        return [f"form{i}: {' '.join([*names, suffix])}", *rules]

    def _compile(self, rules: Sequence[str]) -> LLMatcher:
        matcher = LLMatcher(self._table, LLMatcher.grammar_from_lark("\n".join([_BY_LETTERS, *rules])))
        _check(matcher)
        return matcher

    def around_thoughts(
        self, context: Sequence[int], tags: Tags | None, opens: Sequence[str], *, framed: bool = False
    ) -> Around:
        """What may stand around an answer that follows `context`, where thoughts stand between tags.

        opens: the marks behind which the model calls tools; what it writes there is free. framed: the answer's prefix
        holds the mark of its own message, where answers are messages.
        """
        call = f"({' | '.join(_literal(self._tokenizer, each) for each in opens)}) {self._all_but()}*" if opens else ""
        calls = tuple(map(self._written, opens))
        if tags is None:
            return Around(call=call, start=AnswerStart(calls=calls))
        if is_xtml(self._tokenizer, tags):
            return _around_elements(self._tokenizer, context, call, (self._all_but, self._written))
        state, ids = state_behind(self._tokenizer, context, tags), tag_ids(self._tokenizer, tags)
        if state == "closed":
            return Around(_SPACE_BEFORE_ANSWER, call=call, start=AnswerStart(calls=calls))
        if ids is None:  # as little text as there can be before the tag
            begin, thought = json.dumps(tags[0]), f"thought[suffix={json.dumps(tags[1])}]: /(?s:.*)/"
        else:
            begin, thought = f"<[{ids[0]}]>", f"thought: {self._all_but(ids[1])}* <[{ids[1]}]>"
        whole, opens_with, closes = f"thought {_SPACE_BEFORE_ANSWER}", *map(self._written, tags)
        start = AnswerStart(b"" if state == "opened" else opens_with, closes, calls)
        if tags == SOLAR_TAGS and (message := _solar_message(self._tokenizer)):
            head = "" if framed else message[1]
            start = start if framed else AnswerStart(closes=self._written(SOLAR_CONTENT), calls=calls)
            return Around(f"({begin} thought {message[0]})?", head, call, (thought,), start)
        return Around(whole if state == "opened" else f"({begin} {whole})?", "", call, (thought,), start)

    def around_messages(self, context: Sequence[int], *, framed: bool, tools: bool) -> Around:
        """What stands around an answer of gpt-oss: its analysis, and the head of its final message.

        framed: the answer's prefix holds a head. tools: whether messages may go to tools instead.
        """
        if not in_head(self._tokenizer, context):
            return Around()
        ids = {name: self._tokenizer.token_to_id(name) for name in (START, CHANNEL, MESSAGE, END, CONSTRAIN)}
        start, channel, message, end, constrain = (f"<[{token}]>" for token in ids.values())
        free = self._all_but(*(token for token in ids.values() if token is not None))
        analysis = f'({channel} "analysis" {message} {free}* {end} {start} "assistant")*'
        kind = f'(" "? {constrain} "json")?' if ids[CONSTRAIN] is not None else ""
        to_tool = f'({channel} "commentary to=functions." | " to=functions.") {self._all_but(ids[START] or 0)}*'
        final = "" if framed else f'{channel} "final" {kind} {message}'
        begins = AnswerStart(closes=self._written(CHANNEL) + (b"commentary" if framed else b"final"))
        return Around(analysis, final, to_tool if tools else "", start=begins)


def _solar_message(tokenizer: Tokenizer) -> tuple[str, str] | None:
    """What Solar writes behind a thought, and in front of an answer; None where the marks are no tokens."""
    ids = [tokenizer.token_to_id(name) for name in (SOLAR_BEGIN, SOLAR_CONTENT)]
    return None if None in ids else (f'<[{ids[0]}]> "assistant"', f"<[{ids[1]}]>")


def _around_elements(
    tokenizer: Tokenizer, context: Sequence[int], tools: str, write: tuple[Callable[..., str], Callable[[str], bytes]]
) -> Around:
    """What stands around an answer of Kimi K3: its thoughts, and the tags of the answer.

    tools: what it writes to call some, behind an answer that is empty then; "" for none. write: any token but some, and
    how JsonSpace sees a token.
    """
    all_but, written = write
    marks = list(marks_in(tokenizer))
    opens, closes, sep = (f"<[{token}]>" for token in marks)
    open_mark, close_mark, sep_mark = map(written, (OPEN, CLOSE, SEP))
    call, calls = f'{closes} "response" {sep} {tools}', (close_mark,)
    begun = begun_in(tokenizer, context)
    if begun == "response":
        return Around(call=call if tools else "", start=AnswerStart(calls=calls))
    thought, head = f'{all_but(marks[1])}* {closes} "think" {sep}', f'{opens} "response" {sep}'
    lead = "thought" if begun == "think" else f'({opens} "think" {sep} thought)?'
    start = AnswerStart(closes=open_mark + b"response" + sep_mark, calls=calls)
    return Around(lead, head, f"{head} {call}" if tools else "", (f"thought: {thought}",), start)


def _all_but(eos_ids: Sequence[int], *ids: int) -> str:
    """Any token but these, and but those that end an answer."""
    return f"<[^{','.join(map(str, sorted({*ids, *eos_ids})))}]>"


def _of_value(tokenizer: Tokenizer, number: str, value: JsonMapping, all_but: Callable[[int], str]) -> list[str]:
    """The rules of a value and of what stands around it (see sampling.constraint.Value)."""
    opening, end = (_literal(tokenizer, value[name]) for name in ("opening", "end"))
    if value["schema"] is not None:
        rule = expression({"schema": json.dumps(value["schema"])})
    elif value["choices"]:
        rule = expression({"choice": json.dumps(value["choices"])})
    elif end.startswith("<["):  # a token, which no text holds
        rule = f"{all_but(int(end[2:].partition(']')[0]))}*"
    elif "<[" in end:  # letters in front of a token, which may stand in the text as well
        letters, _, rest = end.partition(" <[")
        end, rule = f"<[{rest}", f"/(?s:.*){escaped(json.loads(letters))}/"
    else:
        return [f"value{number}: {opening} text{number}", f"text{number}[suffix={end}]: /(?s:.*)/"]
    return [f"value{number}: {opening} text{number} {end}", f"text{number}: {rule}"]


def _any_form(forms: Sequence[Mapping[str, str]]) -> str:
    return " | ".join(f"form{i}" for i in range(len(forms)))


def _literal(tokenizer: Tokenizer, text: str) -> str:
    """An expression for a text, in which control tokens stand for themselves and not for their letters."""
    tokens = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    names = sorted(tokens, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return " ".join(f"<[{tokens[part]}]>" if part in tokens else json.dumps(part) for part in parts if part)


def _mask(matcher: LLMatcher) -> bytes:
    mask = matcher.compute_bitmask()  # where this fails, it allows the end of the answer
    _check(matcher)
    return bytes(mask)


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_reason(matcher.get_error()))


def _reason(error: str) -> str:
    """Of llguidance's message the part about the schema, without the line of the grammar or the state behind it."""
    said = re.split(r"\n *[0-9]+ \| |\n<state>", error.rpartition("failed to compile JSON schema: ")[2])[0]
    if "recursion limit exceeded" in said:
        return "it is nested too deeply"
    if "coerce_one_of" in said:
        return "the alternatives of a oneOf overlap, so that more than one could match; write anyOf"
    return "no JSON matches the schema" if said.startswith("NoExtension") else " ".join(said.split())[:300]
