"""What leads somebody who has named no model to one that answers."""

from __future__ import annotations

from moeinf.terminal.arguments.shell_completion import stored_names

_MOST_NAMES = 5
TOY = "a toy of 5.6 million parameters that comes along, whose words make little sense"


def first_steps() -> str:
    """One line: a stored model to run, else the toy, and how to find others."""
    names = stored_names("")
    if not names:
        return (
            f"nothing is stored yet: `moeinf run demo:chat` answers at once, {TOY}; `moeinf list --available` has the "
            "names of real models, and `moeinf fit NAME` says what one takes here"
        )
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    best = next((name for name in names if name.partition(":")[0] != "demo"), names[0])
    return f"stored here: {shown}; `moeinf run {best}` opens a chat"
