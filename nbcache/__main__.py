"""`python -m nbcache`: the `nbcache` command of this interpreter."""

import sys

from nbcache.ui.terminal.parser import main

if __name__ == "__main__":
    sys.exit(main())
