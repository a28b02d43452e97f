#!/bin/sh
# The Python package as users get it: one wheel, installed without compiler or torch (numpy tests), then beside torch (all others).
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
work=$root/build-wheel
environment=$(tools/python_env.sh)
# The CPU parts: nvcc takes longer than all of this. HEADWATER_CUDA=AUTO builds what ./dev wheel builds.
HEADWATER_CUDA=${HEADWATER_CUDA:-OFF} tools/python_wheel.sh "$environment"

plain=$work/plain # an environment with numpy alone, and a PATH without compilers
[ -x "$plain/bin/python" ] || python3 -m venv "$plain"
"$plain/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6
"$plain/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/headwater-*.whl
cd "$work"
PATH=$plain/bin "$plain/bin/python" "$root/tests/python/package/test_numpy.py"
PATH=$plain/bin "$plain/bin/python" - <<'PYTHON'
import time
import numpy
start = time.perf_counter()
import headwater
print(f"import headwater: {1e3 * (time.perf_counter() - start):.1f} ms after numpy, {headwater.__file__}")
PYTHON

if [ -z "$environment" ]; then
  echo "python: no torch here, so its tests did not run"
  exit 0
fi
site=$work/site
rm -rf "$site"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$site" "$root"/dist/headwater-*.whl
failed=0
for test in "$root"/tests/python/torch/test_*.py; do
  name=$(basename "$test" .py)
  start=$(date +%s)
  code=0
  PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1 "$environment/bin/python" "$test" >"$work/$name.log" 2>&1 || code=$?
  if [ $code -eq 0 ]; then
    echo "python: $name passed, $(grep -oE '^Ran [0-9]+ tests?' "$work/$name.log" | head -1) in $(($(date +%s) - start)) s"
  else
    cat "$work/$name.log"
    echo "python: $name FAILED ($code)"
    failed=1
  fi
done
exit $failed
