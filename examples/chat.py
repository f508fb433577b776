"""A conversation: messages go in, the answer is streamed, and the next question builds on it.

    python examples/chat.py [MODEL]

Each line of standard input is a question; an empty one, or the end of the input, ends the conversation.
"""

from __future__ import annotations

import sys

import moeinf


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "demo"
    messages: list[dict[str, str]] = []
    with moeinf.load(name) as model:
        print(model.describe(), file=sys.stderr)
        for line in sys.stdin:
            if not line.strip():
                break
            messages.append({"role": "user", "content": line.strip()})
            # Keys and values of the messages before are kept: only what is new is computed.
            for piece in model.stream(messages, model.params(num_predict=200)):
                print(piece, end="", flush=True)
            print()
            assert model.last is not None
            messages.append({"role": "assistant", "content": model.last.text})


if __name__ == "__main__":
    main()
