"""Train a model on MuSiQue, by the flags that users of verifiers' examples know: train_musique.py train --help."""

from rlvr_debug.errors import run_main
from rlvr_debug.front import train_by_flags

if __name__ == "__main__":
    run_main(lambda: train_by_flags("musique"))
