#!/bin/sh
# Everything that needs a CUDA device, in one command: conformance, device tests, sanitizers, benches; JSON and logs in OUT.
#   tools/gpu/run.sh BUILD OUT [PTX_BUILD]
# BUILD: a build directory with the CUDA backend (targets headwater_command gpu_bench cuda_device_test cuda_narrow_kernel_test), built here or carried here.
# PTX_BUILD: one whose HEADWATER_CUDA_ARCHITECTURES is 80-virtual, to run the sm_80 branches through the driver's compiler.
# Environment: CASES (5000), SANITIZER_CASES (40), COMMIT.
set -u
build=$1
out=$2
ptx_build=${3:-}
here=$(cd "$(dirname "$0")/../.." && pwd)
cases=${CASES:-5000}
sanitizer_cases=${SANITIZER_CASES:-40}
commit=${COMMIT:-unknown}
failed=0
mkdir -p "$out"
find_program() { for at in "$build/$1" "$build/$2/$1"; do [ -x "$at" ] && { echo "$at"; return; }; done; }
headwater=$(find_program headwater .)
bench=$(find_program gpu_bench bench/gpu)
tests=$(find_program cuda_device_test tests/cuda)
narrow_tests=$(find_program cuda_narrow_kernel_test tests/cuda)

step() { # name, command...
  name=$1
  shift
  begin=$(date +%s)
  if "$@" >"$out/$name.txt" 2>&1; then verdict=ok; else verdict=FAILED failed=1; fi
  echo "$verdict $name ($(($(date +%s) - begin)) s)"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee "$out/device.txt"
step device_tests "$tests"
step narrow_tests "$narrow_tests"
step conformance "$headwater" check --backend cuda --cases "$cases" --json "$out/conformance.json"
step conformance_float32 "$headwater" check --backend cuda --cases 500 --kernel attention_cuda_simt --json "$out/conformance_float32.json"
# Most random cases are not for these kernels: features of every case say what is.
latent="sources=1,softcap=off,v=shared,d_qk=576,d_v=512"
apart="sources=1,softcap=off,k=bf16,v=bf16,d_qk=128,d_v=128"
narrow() { # check for each of them: command...
  "$@" --kernel decode_narrow_bf16_d576 --with "$latent,k=bf16" && "$@" --kernel decode_narrow_e4m3_d576 --with "$latent,k=e4m3" &&
    "$@" --kernel decode_narrow_bf16_d128 --with "$apart"
}
case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader) in
  9.0*) step conformance_narrow narrow "$headwater" check --backend cuda --cases 1000 ;;
esac
if [ -n "$ptx_build" ]; then
  step conformance_ptx env CUDA_FORCE_PTX_JIT=1 "$ptx_build/headwater" check --backend cuda --cases 500 --seed 2 --json "$out/conformance_ptx.json"
fi
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck synccheck racecheck; do
    step "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$headwater" check --backend cuda --cases "$sanitizer_cases" --seed 5 --threads 1
  done
else
  echo "skipped: compute-sanitizer is not here"
fi
for format in bf16 e4m3 mxfp4 nvfp4 fp8_ds_656; do
  step "mixed_mla_$format" "$bench" "$here/bench/shapes/mixed_mla.txt" --format "$format" --json "$out/mixed_mla_$format.json" --commit "$commit"
done
for shapes in gqa_decode v4_decode prefill; do
  step "$shapes" "$bench" "$here/bench/shapes/$shapes.txt" --json "$out/$shapes.json" --commit "$commit"
done
cat "$out"/mixed_mla_*.txt "$out"/gqa_decode.txt "$out"/v4_decode.txt "$out"/prefill.txt
exit $failed
