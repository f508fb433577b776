"""python -m moeinf."""

from moeinf.cli import main

if __name__ == "__main__":
    main()
