#!/bin/sh
# The tasks that models ask plans for, a line each: tools/list_tasks.sh LATHE 'MODEL INSPECT-OPTIONS'... >tools/kernel_tasks.txt
#   tools/list_tasks.sh build/release/tools/lathe 'resnet50.onnx' 'ppocr_v4_det.onnx --shape x:1x3x640x640'
set -eu
lathe=$1; shift
for model in "$@"; do
  echo "# $(basename "${model%% *}")"
  # shellcheck disable=SC2086
  "$lathe" inspect $model --threads 1 --no-cache --show tasks
done | sed 's/ avx512_[a-z0-9]*/ avx512/' | awk '!seen[$0]++'  # what any AVX-512 runs
