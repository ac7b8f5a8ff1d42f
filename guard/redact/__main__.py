"""`python -m guard.redact`: the filter on its own, for hooks that cannot wait for the full command line."""

import sys

from guard.redact.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
