#include "src/cuda/hopper/decode_narrow/kernel.h"
#include "src/cuda/hopper/decode_narrow/launcher.cuh"

namespace headwater::cuda {

template <class C, int kWhat>
struct Probe : C {
  static constexpr int kProbe = kWhat;
};
using B = narrow::Config<576, 512, true, false, 32, 5, narrow::Copies::kBulk>;
using E = narrow::Config<576, 512, true, true, 64, 5, narrow::Copies::kBulk>;
using G = narrow::Config<128, 128, false, false, 64, 6, narrow::Copies::kAsync>;
const Kernel probe_bf16_loads = narrow::Launcher<Probe<B, 1>, __nv_bfloat16>::kernel("probe_bf16_loads", "");
const Kernel probe_bf16_compute = narrow::Launcher<Probe<B, 2>, __nv_bfloat16>::kernel("probe_bf16_compute", "");
const Kernel probe_e4m3_loads = narrow::Launcher<Probe<E, 1>, __half>::kernel("probe_e4m3_loads", "");
const Kernel probe_e4m3_compute = narrow::Launcher<Probe<E, 2>, __half>::kernel("probe_e4m3_compute", "");
const Kernel probe_d128_loads = narrow::Launcher<Probe<G, 1>, __nv_bfloat16>::kernel("probe_d128_loads", "");
const Kernel probe_d128_compute = narrow::Launcher<Probe<G, 2>, __nv_bfloat16>::kernel("probe_d128_compute", "");

}  // namespace headwater::cuda
