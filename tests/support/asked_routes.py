"""What is asked of each route of the server; tests/e2e/server/test_event_loop.py holds that none is missing."""

from __future__ import annotations

from typing import Any

from tests.support.caller import LOOK_UP

HI = {"role": "user", "content": "Tell"}
TEXT = {"model": "demo:chat", "max_tokens": 1}
# The path and the body.
ASKED: dict[tuple[str, str], list[tuple[str, Any]]] = {
    ("GET", "/health"): [("/health", None)],
    ("GET", "/metrics"): [("/metrics", None)],
    ("GET", "/api/live"): [("/api/live", None)],
    ("GET", "/api/available"): [("/api/available", None)],
    ("GET", "/api/available/{name:path}"): [("/api/available/nothing", None)],
    ("POST", "/v1/chat/completions"): [
        ("/v1/chat/completions", TEXT | {"messages": [HI]}),
        ("/v1/chat/completions", TEXT | {"messages": [HI], "stream": True}),
        ("/v1/chat/completions", TEXT | {"messages": [HI], "tools": [LOOK_UP], "tool_choice": "required"}),
    ],
    ("POST", "/v1/completions"): [("/v1/completions", TEXT | {"prompt": "Tell"})],
    ("POST", "/v1/embeddings"): [("/v1/embeddings", {"model": "demo:chat", "input": "Tell"})],
    ("POST", "/v1/rerank"): [("/v1/rerank", {"model": "demo:chat"})],
    ("POST", "/v1/responses"): [
        ("/v1/responses", {"model": "demo:chat", "input": "Tell", "max_output_tokens": 1}),
        ("/v1/responses", {"model": "demo:chat", "input": "Tell", "max_output_tokens": 1, "stream": True}),
    ],
    ("POST", "/v1/responses/input_tokens"): [("/v1/responses/input_tokens", {"model": "demo:chat", "input": "Tell"})],
    ("GET", "/v1/responses/{id}"): [("/v1/responses/resp_1", None)],
    ("DELETE", "/v1/responses/{id}"): [("/v1/responses/resp_1", None)],
    ("GET", "/v1/responses/{id}/input_items"): [("/v1/responses/resp_1/input_items", None)],
    ("POST", "/v1/responses/{id}/cancel"): [("/v1/responses/resp_1/cancel", {})],
    ("POST", "/tokenize"): [("/tokenize", {"model": "demo:chat", "content": "Tell"})],
    ("POST", "/detokenize"): [("/detokenize", {"model": "demo:chat", "tokens": [1, 2]})],
    ("POST", "/apply-template"): [("/apply-template", {"model": "demo:chat", "messages": [HI]})],
    ("GET", "/props"): [("/props?model=demo:chat", None)],
    ("GET", "/slots"): [("/slots", None)],
    ("GET", "/v1/models"): [("/v1/models", None)],
    ("GET", "/v1/models/{name:path}"): [("/v1/models/demo:chat", None), ("/v1/models/nobody", None)],
    ("POST", "/v1/messages"): [
        ("/v1/messages", TEXT | {"messages": [HI]}),
        ("/v1/messages", TEXT | {"messages": [HI], "tools": [], "tool_choice": {"type": "any"}}),
    ],
    ("POST", "/v1/messages/count_tokens"): [("/v1/messages/count_tokens", TEXT | {"messages": [HI]})],
    ("POST", "/api/chat"): [
        ("/api/chat", {"model": "demo:chat"} | {"messages": [HI], "options": {"num_predict": 1}, "think": False}),
        ("/api/chat", {"model": "demo:chat"} | {"messages": [HI], "tools": [LOOK_UP]}),
    ],
    ("POST", "/api/generate"): [
        ("/api/generate", {"model": "demo:chat"} | {"prompt": "Tell", "options": {"num_predict": 1}, "stream": False}),
        ("/api/generate", {"model": "demo:chat"}),
    ],
    ("GET", "/api/tags"): [("/api/tags", None)],
    ("POST", "/api/show"): [("/api/show", {"model": "demo:chat", "verbose": True})],
    ("GET", "/api/ps"): [("/api/ps", None)],
    ("GET", "/api/version"): [("/api/version", None)],
    ("POST", "/api/copy"): [("/api/copy", {"source": "demo:chat", "destination": "another"})],
    ("DELETE", "/api/delete"): [("/api/delete", {"model": "another"})],
    ("POST", "/api/pull"): [("/api/pull", {"model": "demo:chat"}), ("/api/pull", {"model": "no/such//name"})],
    ("POST", "/api/create"): [("/api/create", {"model": "x", "from": "demo:chat", "system": "Be kind."})],
    ("POST", "/api/push"): [("/api/push", {"model": "x"})],
    ("POST", "/api/embed"): [("/api/embed", {"model": "demo:chat", "input": "Tell"})],
    ("POST", "/api/embeddings"): [("/api/embeddings", {"model": "demo:chat", "prompt": "Tell"})],
}
CASES = [(method, *each) for (method, _), cases in ASKED.items() for each in cases]
