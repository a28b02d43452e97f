#include "cli/device_problem.h"

#ifdef HEADWATER_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace headwater::cli {

#ifdef HEADWATER_HAS_CUDA
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // above the last cache level of every GPU that we know

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return {StatusCode::kDevice, std::string(what) + ": " + cudaGetErrorString(error)};
}

}  // namespace

DeviceProblem::~DeviceProblem() {
  for (void* block : blocks_) (void)cudaFree(block);
}

Result<Buffer> DeviceProblem::allocate(size_t bytes) {
  void* block = nullptr;
  const Status status = status_of(cudaMalloc(&block, bytes == 0 ? 1 : bytes), "cudaMalloc");
  if (!status.ok()) return status;
  blocks_.push_back(block);
  return Buffer{block, bytes};
}

Status DeviceProblem::synchronize() const { return status_of(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

Status DeviceProblem::flush_caches() {
  if (flush_.data == nullptr) {
    const Result<Buffer> buffer = allocate(kFlushBytes);
    if (!buffer.ok()) return buffer.status();
    flush_ = *buffer;
  }
  const Status status = status_of(cudaMemset(flush_.data, 0, flush_.bytes), "cudaMemset");
  return status.ok() ? synchronize() : status;
}

// Host pointer to its place in the block's copy.
template <class T>
void DeviceProblem::move(const io::OwnedProblem& host, const T** pointer) const {
  const auto* at = reinterpret_cast<const std::byte*>(*pointer);
  for (size_t i = 0; at != nullptr && i < host.storage.size(); ++i) {
    const io::AlignedBytes& block = host.storage[i];
    // An empty block's own address counts: an empty tensor has a pointer too.
    if (at < block.data() || at > block.data() + block.size() || (at == block.data() + block.size() && block.size() > 0)) continue;
    *pointer = reinterpret_cast<const T*>(static_cast<const std::byte*>(blocks_[i]) + (at - block.data()));
    return;
  }
}
template <class T>
void DeviceProblem::move(const io::OwnedProblem& host, T** pointer) const {
  const T* moved = *pointer;
  move(host, &moved);
  *pointer = const_cast<T*>(moved);
}

Status DeviceProblem::copy(const io::OwnedProblem& host) {
  Status status = status_of(cudaSetDevice(device_index_), "cudaSetDevice");
  for (size_t i = 0; status.ok() && i < host.storage.size(); ++i) {
    const Result<Buffer> buffer = allocate(host.storage[i].size());
    if (!buffer.ok()) return buffer.status();
    status = status_of(cudaMemcpy(buffer->data, host.storage[i].data(), host.storage[i].size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  return status;
}

Result<std::unique_ptr<DeviceProblem>> DeviceProblem::upload(const io::OwnedProblem& host, int32_t device_index) {
  std::unique_ptr<DeviceProblem> copy(new DeviceProblem(device_index));
  const Status status = copy->copy(host);
  if (!status.ok()) return status;
  Problem& p = copy->problem_;
  p = host.problem;
  p.device = {DeviceKind::kCuda, device_index};
  const auto move = [&](auto... pointers) { (copy->move(host, pointers), ...); };
  move(&p.q.data, &p.q_tail.data, &p.q_scale.data, &p.qo_indptr, &p.context_lens, &p.sinks, &p.out.data, &p.lse.data);
  copy->sources_ = host.sources;
  for (Source& s : copy->sources_) {
    for (KvTensor* t : {&s.k, &s.v}) move(&t->data, &t->scales, &t->scale.data);
    Addressing& a = s.addressing;
    move(&a.kv_indptr, &a.block_table, &a.kv_indices, &a.seq_lens, &a.kv_last_page_len);
    move(&s.rule.indices, &s.rule.topk_lens, &s.first_position, &s.position_stride);
  }
  p.sources = copy->sources_;
  return copy;
}

Status DeviceProblem::download(const io::OwnedProblem& host) const {
  for (size_t i = 0; i < host.storage.size(); ++i) {
    const io::AlignedBytes& block = host.storage[i];
    for (void* output : {host.problem.out.data, static_cast<void*>(host.problem.lse.data)}) {
      if (output != block.data()) continue;
      const Status status = status_of(cudaMemcpy(output, blocks_[i], block.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
      if (!status.ok()) return status;
    }
  }
  return {};
}

#else

DeviceProblem::~DeviceProblem() = default;
Result<std::unique_ptr<DeviceProblem>> DeviceProblem::upload(const io::OwnedProblem& /*host*/, int32_t /*device_index*/) {
  return unsupported("cuda: not built");
}
Result<Buffer> DeviceProblem::allocate(size_t /*bytes*/) { return unsupported("cuda: not built"); }
Status DeviceProblem::synchronize() const { return unsupported("cuda: not built"); }
Status DeviceProblem::flush_caches() { return unsupported("cuda: not built"); }
Status DeviceProblem::download(const io::OwnedProblem& /*host*/) const { return unsupported("cuda: not built"); }

#endif

}  // namespace headwater::cli
