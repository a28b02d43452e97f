#!/bin/sh
# Two consumers of the library: by installed package and by add_subdirectory; both run.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
work=build-consumers
rm -rf $work
mkdir -p $work
cmake -S . -B $work/lib -G Ninja -DHEADWATER_BUILD_TESTS=OFF -DHEADWATER_BUILD_CLI=OFF -DHEADWATER_CUDA=OFF "-DCMAKE_INSTALL_PREFIX=$root/$work/prefix" >/dev/null
cmake --build $work/lib -j "${JOBS:-$(nproc)}" -- --quiet
cmake --install $work/lib >/dev/null
cmake -S tests/consumers/package -B $work/package -G Ninja "-DCMAKE_PREFIX_PATH=$root/$work/prefix" >/dev/null
cmake --build $work/package -- --quiet
$work/package/consumer
cmake -S tests/consumers/subdirectory -B $work/subdirectory -G Ninja >/dev/null
cmake --build $work/subdirectory -j "${JOBS:-$(nproc)}" -- --quiet
$work/subdirectory/consumer
