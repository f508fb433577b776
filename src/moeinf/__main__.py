"""The console command, and python -m moeinf."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command line. Ctrl-C while that is being imported ends the process at once, without a traceback."""
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored
    if answered:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from moeinf.cli import main as command

    try:
        if answered:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
