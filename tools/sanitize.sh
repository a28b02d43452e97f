#!/bin/sh
# address: address + undefined behaviour over the fast tests and 400 conformance cases. thread: the worker code with a std::thread
# loop, since libgomp is not instrumented. fuzz: the file readers for FUZZ_SECONDS (default 60).
set -eu
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
preset() {
  launcher=
  if command -v ccache >/dev/null 2>&1; then launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
  # An ISA that this machine cannot run would only cost minutes to build.
  avx512=OFF
  if grep -q avx512f /proc/cpuinfo; then avx512=ON; fi
  # shellcheck disable=SC2086
  cmake --preset "$@" -DHEADWATER_AVX512=$avx512 $launcher >/dev/null
}

sanitize_address() {
  preset asan
  cmake --build build-asan -j "$jobs" -- --quiet
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 HEADWATER_CHECK_CASES="${HEADWATER_CHECK_CASES:-400}"
  ctest --test-dir build-asan --output-on-failure -j "$jobs" -L fast
  build-asan/headwater check --cases 400 --seed "$(date +%j)"
}

sanitize_thread() {
  preset tsan
  cmake --build build-tsan -j "$jobs" --target cpu_workers_test -- --quiet
  ctest --test-dir build-tsan --output-on-failure -L threads --no-tests=error
}

sanitize_fuzz() {
  preset fuzz
  cmake --build build-fuzz -j "$jobs" -- --quiet
  seconds=${FUZZ_SECONDS:-60}
  set -- build-fuzz/tests/fuzz/fuzz_*
  each=$((seconds / $#))
  for target in "$@"; do
    name=$(basename "$target")
    mkdir -p "build-fuzz/corpus/$name"
    "$target" -max_total_time="$each" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name" 2>&1 |
      grep -E 'stat::|ERROR|SUMMARY|Done|crash' || true
    # libFuzzer leaves crash-*, oom-* or timeout-* behind when it finds something.
    for left in crash-* oom-* timeout-* leak-*; do
      if [ -e "$left" ]; then echo "fuzz: $name found $left"; exit 1; fi
    done
  done
}

if [ $# -eq 0 ]; then set -- address thread fuzz; fi
for which in "$@"; do
  case $which in
    address | thread | fuzz) "sanitize_$which" ;;
    *) echo "sanitize: unknown '$which' (address, thread, fuzz)" >&2; exit 2 ;;
  esac
done
