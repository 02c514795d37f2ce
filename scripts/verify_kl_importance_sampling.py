"""Compare each KL term's gradient, in loss and in reward, weighted by the ratio or not, with the KL's."""

import argparse
import sys

from rlvr_debug.checkout import ROOT
from rlvr_debug.processes import run_main
from rlvr_debug.study.params import load_params

sys.path.append(str(ROOT))  # the laboratory is not installed
from lab.exact_kl import importance_sampling_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--distance",
        type=float,
        default=0.5,
        help="of the policy from the reference: standard deviation of the difference of their logits",
    )
    parser.add_argument(
        "--off-policy",
        type=float,
        default=0.3,
        help="of the policy that sampled from the one that is trained",
    )
    args = parser.parse_args()
    settings = load_params(ROOT / "params.yaml").training
    print(importance_sampling_report(args.distance, args.off_policy, settings))


if __name__ == "__main__":
    run_main(main)
