"""Let scripted policies earn rewards on every row: an oracle must win, a spoiler must lose."""

import argparse
import json
from pathlib import Path

from rlvr_debug.audit import audit_rewards
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment-name", required=True)
    parser.add_argument("--environment", required=True, help="its settings, as JSON")
    parser.add_argument("--base-model", type=Path, required=True, help="for its tokenizer")
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    audit_rewards(
        args.environment_name, json.loads(args.environment), args.base_model, args.rows, args.out
    )


if __name__ == "__main__":
    run_main(main)
