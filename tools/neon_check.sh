#!/bin/sh
# Cross-compiles the CPU backend for 64-bit Arm and runs its tests and CASES random problems on the NEON kernel under qemu-aarch64.
set -eu
cd "$(dirname "$0")/.."
cases=${1:-300}
build=build-neon
launcher=
if command -v ccache >/dev/null 2>&1; then launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
# shellcheck disable=SC2086
cmake -S tests/cross -B $build -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/aarch64.cmake" $launcher >/dev/null
cmake --build $build -j "${JOBS:-$(nproc)}" -- --quiet
NM=aarch64-linux-gnu-nm tools/check_isa_symbols.sh $build
for test in core/core_float_env_test cpu/cpu_exp2_test cpu/cpu_backend_test cpu/cpu_workers_test; do
  echo "== $test"
  qemu-aarch64 $build/$test --gtest_brief=1
done
# The scalar kernel is the same code as on the host: NEON only.
for test in cpu/cpu_exactness_test cpu/cpu_invariance_test cpu/cpu_attention_test; do
  echo "== $test"
  qemu-aarch64 $build/$test --gtest_brief=1 --gtest_filter='*neon*'
done
echo "== random problems"
qemu-aarch64 $build/random_cases "$cases" 20 neon
