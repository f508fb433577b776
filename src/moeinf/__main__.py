"""The console command, and python -m moeinf."""

from __future__ import annotations

import signal
import sys

from moeinf.terminal.process.interrupt import end_at_once, end_at_once_at_endings, unwind_at_endings


def main() -> None:
    """Runs the command line. A signal while that is being imported ends the process at once, without a traceback."""
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored
    if answered:
        end_at_once(signal.SIGINT)
    end_at_once_at_endings()
    try:
        from moeinf.cli import main as command
    except (ImportError, MemoryError, OSError, SystemError) as error:  # what comes later is for cli.py to tell
        from moeinf.errors import of_the_machine

        sys.exit(f"Error: {of_the_machine(error) or error}")

    try:
        if answered:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        unwind_at_endings()
        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
