"""`python -m rlvr_debug` is `rlvr-debug`, which launchers of several processes start by its module."""

import sys

from rlvr_debug.cli import main
from rlvr_debug.recorders.trl.launched import take_launcher_words

if __name__ == "__main__":
    words = sys.argv[1:]
    take_launcher_words(words)
    sys.argv[1:] = words
    main()
