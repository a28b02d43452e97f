#!/bin/sh
# One wheel into dist/: with the torch operators where an environment with torch is at hand. Prints its size.
set -eu
cd "$(dirname "$0")/.."
environment=${1-$(tools/python_env.sh)}
mkdir -p dist
rm -f dist/headwater-*.whl
if command -v ccache >/dev/null 2>&1; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
export CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"
if [ -n "$environment" ]; then
  # Its own scikit-build-core, so that nothing is downloaded; torch must be found.
  PATH="$environment/bin:$PATH" "$environment/bin/python" -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist \
    --config-settings=cmake.define.HEADWATER_TORCH=ON "--config-settings=cmake.define.HEADWATER_CUDA=${HEADWATER_CUDA:-AUTO}"
else
  python3 -m pip wheel . --quiet --no-deps --wheel-dir dist "--config-settings=cmake.define.HEADWATER_CUDA=${HEADWATER_CUDA:-AUTO}"
fi
for wheel in dist/headwater-*.whl; do
  echo "wheel: $wheel, $(($(wc -c <"$wheel") / 1024)) KiB"
done
