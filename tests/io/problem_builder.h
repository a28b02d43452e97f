// Small problem files made in memory, to be bent by tests and by the fuzzer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/io/problem_file.h"
#include "tests/io/temp_file.h"

namespace headwater::io {

// A problem file in memory: tensors hold byte values 0, 1, 2, ... unless given.
class Builder {
 public:
  Builder& tensor(const std::string& name, const std::string& type, const std::vector<int64_t>& shape,
                  const std::vector<int32_t>& values = {}) {
    tensors_[name] = {type, shape, values};
    return *this;
  }
  Builder& meta(const std::string& key, const std::string& value) {
    metadata_[key] = value;
    return *this;
  }
  Builder& drop(const std::string& name) {
    tensors_.erase(name);
    metadata_.erase(name);
    return *this;
  }
  Result<ProblemFile> open() {
    std::string header = "{\"__metadata__\":{";
    for (const auto& [k, v] : metadata_) header += (header.back() == '{' ? "\"" : ",\"") + k + "\":\"" + v + "\"";
    header += "}";
    std::string data;
    for (const auto& [name, t] : tensors_) {
      static const std::map<std::string, int64_t> kBits{{"F4", 4},      {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8},
                                                        {"F8_E8M0", 8}, {"U16", 16}, {"F16", 16}, {"BF16", 16},
                                                        {"F32", 32},    {"I32", 32}, {"I64", 64}, {"F64", 64}};
      int64_t n = kBits.at(t.type);
      for (const int64_t d : t.shape) n *= d;
      const size_t begin = data.size();
      if (!t.values.empty()) data.append(reinterpret_cast<const char*>(t.values.data()), t.values.size() * 4);
      for (size_t i = data.size() - begin; i < static_cast<size_t>(n / 8); ++i) data.push_back(static_cast<char>(i % 100));
      header += ",\"" + name + "\":{\"dtype\":\"" + t.type + "\",\"shape\":" + shape_text(t.shape) + ",\"data_offsets\":[" +
                std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    }
    bytes_ = raw_safetensors(header + "}", data);
    auto file = Safetensors::parse(std::as_bytes(std::span(bytes_)), "f");
    if (!file.ok()) return file.status();
    return ProblemFile::from(std::move(file).value());
  }
  Result<OwnedProblem> load() {
    const auto file = open();
    if (!file.ok()) return file.status();
    return file->load(0);
  }

 private:
  struct Tensor {
    std::string type;
    std::vector<int64_t> shape;
    std::vector<int32_t> values;
  };
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::string bytes_;
};

inline Builder ragged() {
  Builder b;
  b.tensor("q", "BF16", {3, 4, 8}).tensor("kv.0.k", "BF16", {10, 2, 8}).tensor("kv.0.v", "BF16", {10, 2, 6});
  return b.meta("sm_scale", "0.125").meta("kv.0.rule", "causal");
}
inline Builder paged() {
  Builder b = ragged();
  b.tensor("qo_indptr", "I32", {3}, {0, 1, 3}).tensor("kv.0.k", "BF16", {5, 4, 2, 8}).tensor("kv.0.v", "BF16", {5, 4, 2, 6});
  return b.tensor("kv.0.block_table", "I32", {2, 3}, {0, 1, 2, 3, 4, 0}).tensor("kv.0.seq_lens", "I32", {2}, {9, 7});
}
inline Builder page_list() {
  Builder b = paged().drop("kv.0.block_table").drop("kv.0.seq_lens");
  b.tensor("kv.0.kv_indptr", "I32", {3}, {0, 3, 5}).tensor("kv.0.kv_indices", "I32", {5}, {0, 1, 2, 3, 4});
  return b.tensor("kv.0.kv_last_page_len", "I32", {2}, {1, 3});
}
inline Builder gathered_584() {
  Builder b;
  b.tensor("q", "BF16", {3, 4, 512}).tensor("kv.0.bytes", "U8", {2, 1728});
  b.meta("sm_scale", "1").meta("kv.0.rule", "gathered").meta("kv.0.format", "fp8_ds_584").meta("kv.0.page_size", "2");
  return b.meta("kv.0.value_width", "512").tensor("kv.0.indices", "I32", {3, 2}, {0, 1, 2, 3, -1, 0});
}
inline Builder mxfp4() {
  Builder b;
  b.tensor("q", "F32", {2, 4, 64})
      .tensor("q_tail", "F32", {2, 4, 32})
      .tensor("kv.0.bytes", "U8", {7, 1, 48})
      .tensor("kv.0.scales", "F8_E8M0", {8, 1, 4});
  b.meta("kv.0.format", "mxfp4").meta("sm_scale", "0").meta("kv.0.rule", "full").meta("kv.0.value_width", "64");
  return b;
}

}  // namespace headwater::io
