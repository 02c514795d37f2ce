"""Train a model on GSM8K, by the flags that users of verifiers' examples know: train_gsm8k.py train --help."""

from train_flags import train_by_flags

from rlvr_debug.processes import run_main

if __name__ == "__main__":
    run_main(lambda: train_by_flags("gsm8k"))
