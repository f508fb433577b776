"""What /? says."""

from __future__ import annotations

import re

from moeinf.config.option import options
from moeinf.terminal.arguments.chat_options import ChatOptions

HELP = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load another model, or a chat that was saved
  /save <name>    Keep this chat under a name
  /list           List stored models
  /stats          Show the expert cache and the context
  /read <picture> Ask about a PNG or JPEG file with the next message
  /regen          Answer the last message again
  /clear          Clear session context
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message, and Tab to complete a command."""
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


def words_of(text: str) -> list[str]:
    """The commands of one of these texts, each in as many words as have no placeholder: `/set parameter`."""
    lines = [line for line in text.splitlines() if line.startswith("  /")]
    return [re.split(r" {2,}| [<\[]| \.\.\.|,", line.strip())[0] for line in lines]


def help_text(topic: str) -> str:
    """Of a topic, or of all commands."""
    return HELPS.get(topic, HELP)
