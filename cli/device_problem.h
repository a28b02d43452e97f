// A loaded problem on a CUDA device. In builds without the CUDA backend upload() says so.
#pragma once

#include <memory>
#include <vector>

#include "headwater/headwater.h"
#include "src/io/problem_file.h"

namespace headwater::cli {

class DeviceProblem {
 public:
  // Copies all that the problem points to.
  [[nodiscard]] static Result<std::unique_ptr<DeviceProblem>> upload(const io::OwnedProblem& host, int32_t device_index);
  DeviceProblem(const DeviceProblem&) = delete;
  DeviceProblem& operator=(const DeviceProblem&) = delete;
  ~DeviceProblem();

  [[nodiscard]] const Problem& problem() const { return problem_; }
  // Memory for schedule and scratch, freed with the object.
  [[nodiscard]] Result<Buffer> allocate(size_t bytes);
  [[nodiscard]] Status synchronize() const;
  // Leaves nothing of the problem in the device's cache.
  [[nodiscard]] Status flush_caches();
  // out and lse, back into the problem that was uploaded.
  [[nodiscard]] Status download(const io::OwnedProblem& host) const;

 private:
  explicit DeviceProblem(int32_t device_index) : device_index_(device_index) {}
  Status copy(const io::OwnedProblem& host);
  template <class T>
  void move(const io::OwnedProblem& host, const T** pointer) const;
  template <class T>
  void move(const io::OwnedProblem& host, T** pointer) const;

  int32_t device_index_;
  std::vector<void*> blocks_;  // one for each of the host's storage blocks, then those of allocate()
  Buffer flush_;
  std::vector<Source> sources_;
  Problem problem_;
};

}  // namespace headwater::cli
