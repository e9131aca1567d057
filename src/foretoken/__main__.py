"""``python -m foretoken``: the command line."""

from __future__ import annotations

import sys

from foretoken_cli import main

if __name__ == "__main__":
    sys.exit(main())
