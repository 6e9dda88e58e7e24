"""`python -m graphkit` is the command `graphkit`."""

from __future__ import annotations

from graphkit.cli import main

if __name__ == "__main__":
    main()
