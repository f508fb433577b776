"""What a command is as a process: its streams, what signals do to it, and its end where threads cannot begin."""
