#!/usr/bin/env bash
# Check a trainer's repository at a change: three steps of its script, each part of them computed again.
# action.yml runs this; it runs by hand and under any other CI alike. What it is told, as variables:
#   SCRIPT     the script that trains with TRL's GRPOTrainer, from the repository's root
#   ARGUMENTS  its own arguments, separated by spaces: a smoke configuration
#   BASELINE   a file of `rlvr-debug check --json-out`; without it, whatever deviates fails
#   STEPS      optimizer steps; 3
#   OUT        a folder for check.json (the next baseline) and check.html
#   PYTHON     the Python that has TRL; python
set -euo pipefail
: "${SCRIPT:?is missing, expected the script that trains with GRPOTrainer}"
python=${PYTHON:-python} out=${OUT:-rlvr-debug}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# torch, transformers and TRL stay the versions that are there
"$python" -m pip install -q "$here[check]"
mkdir -p "$out"
# of all lines: a list in YAML may have several; at the end read fails
read -r -d '' -a arguments <<< "${ARGUMENTS:-}" || true
"$python" -m rlvr_debug.cli check --annotate --steps "${STEPS:-3}" \
  ${BASELINE:+--baseline "$BASELINE"} --json-out "$out/check.json" --html "$out/check.html" \
  "$SCRIPT" ${arguments[@]+"${arguments[@]}"}
