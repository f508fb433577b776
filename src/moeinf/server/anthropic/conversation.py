"""Anthropic's messages, whose contents are lists of blocks, made the plain messages that chat templates read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from moeinf.server.anthropic.tool_changes import is_change
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.agent_noise import quiet_text
from moeinf.server.prompt.pictures import joined, picture_at, picture_of
from moeinf.types import JsonMapping, JsonObject, Message

Block = JsonMapping
_ROLES = ("system", "user", "assistant")


def plain_messages(system: str | Sequence[Block] | None, messages: Sequence[JsonMapping]) -> list[Message]:
    """The chat in OpenAI's form. Raises Refusal, which names the message, for what a model here cannot read."""
    if not messages:
        raise Refusal(400, "messages is empty; give at least one")
    plain: list[Message] = []
    if system:
        texts = [quiet_text(_text(block, "system")) for block in _blocks(system, "system")]
        if content := "\n".join(text for text in texts if text):
            plain.append({"role": "system", "content": content})
    for at, message in enumerate(messages):
        plain.extend(_turns(message, f"messages[{at}]"))
    return plain


def _turns(message: JsonMapping, where: str) -> Iterator[Message]:
    """The turns that one message becomes: results of tools are turns of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise Refusal(400, f"{where}: role {role!r:.60} is none of {', '.join(_ROLES)}")
    given = _blocks(content, where)
    blocks = [block for block in given if not is_change(block)]
    if given and not blocks:
        return
    if role == "assistant":
        yield _assistant_turn(blocks, where)
        return
    parts: list[JsonObject] = []
    for block in blocks:
        if block["type"] != "tool_result":
            parts.append(_part(block, where))
            continue
        if parts:
            yield {"role": role, "content": joined(parts, where)}
            parts = []
        yield _result(block, where)
    if parts or not blocks:
        yield {"role": role, "content": joined(parts, where)}


def _part(block: Block, where: str) -> JsonObject:
    if block["type"] != "image":
        return {"type": "text", "text": _text(block, where)}
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if isinstance(source, dict) and kind == "base64":
        return picture_of(source.get("data"), where)
    if isinstance(source, dict) and kind == "url":
        return picture_at(source, where)
    raise Refusal(400, f"{where}: an image must come in base64; its source is of type {kind!r:.60}")


def _assistant_turn(blocks: Sequence[Block], where: str) -> Message:
    texts, thoughts, calls = list[str](), list[str](), list[JsonObject]()
    for block in blocks:
        if block["type"] == "thinking":
            thoughts.append(_string(block, "thinking", where))
        elif block["type"] == "tool_use":
            calls.append(_call(block, where))
        elif block["type"] != "redacted_thinking":  # nobody here can read it
            texts.append(_text(block, where))
    turn: JsonObject = {"role": "assistant", "content": "\n".join(texts)}
    if thought := "\n".join(thoughts):
        turn |= {"reasoning_content": thought, "thinking": thought}
    return turn | ({"tool_calls": calls} if calls else {})


def _call(block: Block, where: str) -> JsonObject:
    arguments = block.get("input")
    if not isinstance(arguments, Mapping):
        raise Refusal(400, f"{where}: the input of a tool_use block must be an object")
    function = {"name": _string(block, "name", where), "arguments": arguments}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _result(block: Block, where: str) -> Message:
    parts = [_part(each, where) for each in _blocks(block.get("content") or "", where)]
    content = joined(parts, where)
    if block.get("is_error") is True:  # chat templates have no other place for it
        if not isinstance(content, str):
            content = [{"type": "text", "text": "Error:"}, *content]
        elif not content.lower().startswith("error"):
            content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": content}


def _blocks(content: object, where: str) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise Refusal(400, f"{where}: content must be text or a list of blocks")
    for block in content:
        if not isinstance(block.get("type"), str):
            raise Refusal(400, f"{where}: a block has no type")
    return content


def _text(block: Block, where: str) -> str:
    """The text of a block that is, or holds, nothing else. Raises Refusal for images and the like."""
    read = _READERS.get(block["type"])
    if read is None:
        raise Refusal(400, f"{where}: a model here reads no block of type {block['type']!r:.60} there; leave it out")
    return read(block, where)


def _document(block: Block, where: str) -> str:
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("text", "content"):
        raise Refusal(400, f"{where}: a document must hold text; its source is of type {kind!r:.60}")
    return _titled(block, _string(source, "data", where) if kind == "text" else _inner_text(source, where))


def _search_result(block: Block, where: str) -> str:
    return _titled(block, f"{_string(block, 'source', where)}\n{_inner_text(block, where)}")


def _inner_text(holder: Block, where: str) -> str:
    """The content of a document, in which there are no further documents."""
    blocks = _blocks(holder.get("content"), where)
    if any(block["type"] != "text" for block in blocks):
        raise Refusal(400, f"{where}: models here read text alone; a document holds something else")
    return "\n".join(_text(block, where) for block in blocks)


def _titled(block: Block, text: str) -> str:
    heads = (block.get("title"), block.get("context"))
    return "\n".join([*(head for head in heads if isinstance(head, str) and head), text])


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise Refusal(400, f"{where}: a block of type {block.get('type')!r:.60} must have the text {name}")
    return value


_READERS: Mapping[str, Callable[[Block, str], str]] = {
    "text": lambda block, where: _string(block, "text", where),
    "document": _document,
    "search_result": _search_result,
    "tool_reference": lambda block, where: _string(block, "tool_name", where),  # found by a tool that looks for tools
}
