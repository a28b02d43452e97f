#!/bin/sh
# The whole tree under clang 14, warnings as errors, and the fast tests.
set -eu
cd "$(dirname "$0")/.."
launcher=
if command -v ccache >/dev/null 2>&1; then launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
# shellcheck disable=SC2086
cmake --preset clang $launcher >/dev/null
cmake --build build-clang -j "${JOBS:-$(nproc)}" -- --quiet
ctest --test-dir build-clang --output-on-failure -j "${JOBS:-$(nproc)}" -L fast
