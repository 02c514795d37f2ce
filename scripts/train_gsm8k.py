"""Train a model on GSM8K, by the flags that users of verifiers' examples know: train_gsm8k.py train --help."""

from rlvr_debug.errors import run_main
from rlvr_debug.front import train_by_flags

if __name__ == "__main__":
    run_main(lambda: train_by_flags("gsm8k"))
