"""What /? says."""

from __future__ import annotations

from moeinf.config.option import options
from moeinf.terminal.arguments.chat_options import ChatOptions

HELP = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load another model
  /list           List stored models
  /stats          Show the expert cache and the context
  /read <picture> Ask about a PNG or JPEG file with the next message
  /regen          Answer the last message again
  /clear          Clear session context
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message."""
HELP_SET = "\n".join(
    [
        "Available Commands:",
        "  /set parameter ...     Set a parameter",
        *(f"  /set {words:<18}{text}" for each in options(ChatOptions) for words, text in each.chat.items()),
    ]
)
HELP_SHOW = """\
Available Commands:
  /show info         Show details of this model
  /show license      Show its licence
  /show parameters   Show its parameters, and yours
  /show system       Show system message
  /show template     Show its chat template"""
HELP_SHORTCUTS = """\
Available keyboard shortcuts:
  Ctrl + a, Ctrl + e      Move to the beginning or the end of the line
  Alt + b, Alt + f        Move by a word
  Ctrl + k, Ctrl + u      Delete to the end or the beginning of the line
  Ctrl + w                Delete the word before the cursor
  Ctrl + j                Begin a new line in the message
  Up, Down                Earlier and later messages
  Ctrl + l                Clear the screen
  Ctrl + c                Stop the answer; twice: exit
  Ctrl + d                Exit"""
HELPS = {
    "": HELP,
    "set": HELP_SET,
    "/set": HELP_SET,
    "show": HELP_SHOW,
    "/show": HELP_SHOW,
    "shortcuts": HELP_SHORTCUTS,
}


def help_text(topic: str) -> str:
    """Of a topic, or of all commands."""
    return HELPS.get(topic, HELP)
