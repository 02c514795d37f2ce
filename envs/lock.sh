#!/bin/sh
# Pin what *.in ask for. CUDA's packages are left to torch, which pins them itself: a CPU build has none.
set -eu
cd "$(dirname "$0")"
skip=""
for package in triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti \
    nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand \
    nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
    nvidia-nvshmem-cu13 nvidia-nvtx; do
  skip="$skip --no-emit-package $package"
done
for name in train test trl verifiers-0.1.3 verifiers-0.1.6.post0; do
  # shellcheck disable=SC2086
  uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links $skip "$name.in" --output-file "$name.txt"
done
