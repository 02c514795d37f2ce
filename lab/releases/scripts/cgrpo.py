"""trl-cgrpo: budgets of rollouts by a calibrated score, `cgrpo.py aps` or `pass_rate`."""

import sys

from common import COMMON, rows, told
from trl_cgrpo import CGRPOConfig, CGRPOTrainer

score = sys.argv[1]
own = {"calibration_answer_column": "answer"} if score == "aps" else {}
by = (
    {"answer_extractor": lambda text: text[:1]}
    if score == "aps"
    else {"verifier": lambda completions, **_: [len(each) % 2 == 0 for each in completions]}
)
args = CGRPOConfig(**COMMON, budget_grid=[2, 4], score=score, **own)
CGRPOTrainer(args=args, calibration_dataset=rows(9), **by, **told()).train()
