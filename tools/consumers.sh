#!/bin/sh
# Three consumers of the library: by installed package, by add_subdirectory, and a C program by pkg-config --static; all run.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
work=build-consumers
rm -rf $work
mkdir -p $work
cmake -S . -B $work/lib -G Ninja -DHEADWATER_BUILD_TESTS=OFF -DHEADWATER_BUILD_CLI=OFF -DHEADWATER_CUDA=OFF "-DCMAKE_INSTALL_PREFIX=$root/$work/prefix" -DCMAKE_INSTALL_LIBDIR=lib >/dev/null
cmake --build $work/lib -j "${JOBS:-$(nproc)}" -- --quiet
cmake --install $work/lib >/dev/null
cmake -S tests/consumers/package -B $work/package -G Ninja "-DCMAKE_PREFIX_PATH=$root/$work/prefix" >/dev/null
cmake --build $work/package -- --quiet
$work/package/consumer
cmake -S tests/consumers/subdirectory -B $work/subdirectory -G Ninja >/dev/null
cmake --build $work/subdirectory -j "${JOBS:-$(nproc)}" -- --quiet
$work/subdirectory/consumer
export PKG_CONFIG_PATH="$root/$work/prefix/lib/pkgconfig"
# shellcheck disable=SC2046
cc -std=c11 $(pkg-config --cflags headwater) tests/c_api/c_api_test.c -o $work/c_api $(pkg-config --static --libs headwater)
$work/c_api
