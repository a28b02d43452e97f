#!/bin/sh
# clang-format, include directions, sizes, clang-tidy. LINT_TIDY_FILES limits tidy to some files.
set -eu
cd "$(dirname "$0")/.."
python3 tools/check_includes.py
python3 tools/check_sizes.py
git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror
echo "format: clean"
mkdir -p build-tidy
cmake -S . -B build-tidy -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DHEADWATER_CUDA=OFF >/dev/null
# The per-ISA kernels are template expansions of Highway: tidy reads them as the scalar build of the same files.
files=${LINT_TIDY_FILES:-$(git ls-files 'src/*.cc' 'cli/*.cc' | grep -vE '^src/(cpu/(x86|arm)_|cuda/)')}
printf '%s\n' $files | xargs -P "${JOBS:-$(nproc)}" -n 4 clang-tidy-14 -p build-tidy --quiet 2>&1 | grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter' | tee build-tidy/tidy.log
if grep -qE '(warning|error):' build-tidy/tidy.log; then echo "tidy: findings above"; exit 1; fi
echo "tidy: clean"
