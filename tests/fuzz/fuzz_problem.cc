// Nearly right problem files: one of the small valid ones, bent in a few places. What loads and validates is computed, so that a
// length or table entry that slips through meets the sanitizers.
#include <cstddef>
#include <cstdint>
#include <string>

#include "headwater/headwater.h"
#include "src/core/resolved.h"
#include "src/io/problem_names.h"
#include "tests/io/problem_builder.h"

namespace headwater::io {
namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  [[nodiscard]] bool empty() const { return at_ >= size_; }
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  template <class List>
  auto pick(const List& list) {
    return list[byte() % std::size(list)];
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

std::string field_name(Input* in, std::span<const std::string_view> of_problem, std::span<const std::string_view> of_source) {
  const uint8_t where = in->byte();
  const std::string layer = where % 16 == 15 ? "layers.1." : "";
  if (where % 4 == 0) return layer + std::string(in->pick(of_problem));
  return layer + "kv." + std::to_string(where / 4 % 2) + "." + std::string(in->pick(of_source));
}

void bend(Input* in, Builder* builder) {
  static constexpr const char* kTypes[] = {"I32", "F32", "BF16", "U8", "F8_E4M3", "I64", "F16", "I8", "F8_E8M0", "U16", "F4", "F64"};
  static constexpr int64_t kDims[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 16, 32, 64, 512, 576, 1728};
  static const std::string kValues[] = {"0",          "1",          "2",          "-1",           "4",
                                        "64",         "512",        "full",       "causal",       "window",
                                        "compressed", "gathered",   "position",   "slot",         "f32",
                                        "bf16",       "e4m3",       "int8",       "mxfp4",        "nvfp4",
                                        "q8_0",       "fp8_ds_584", "fp8_ds_656", "nvfp4_ds_384", "mxfp4_rope_bf16",
                                        "2147483647", "1e30",       "0.5",        "nan",          ""};
  switch (in->byte() % 4) {
    case 0:
    case 1: {
      const std::string name = field_name(in, problem_tensor_names(), source_tensor_names());
      const std::string type = in->pick(kTypes);
      std::vector<int64_t> shape(in->byte() % 5);
      int64_t elements = 1;
      for (int64_t& d : shape) {
        d = in->pick(kDims);
        elements *= d;
      }
      if (elements > 100'000) return;
      std::vector<int32_t> values;
      for (int64_t i = 0; type == "I32" && i < elements && i < 64; ++i) {
        const uint8_t b = in->byte();
        values.push_back(b == 255 ? INT32_MAX : b == 254 ? INT32_MIN : static_cast<int8_t>(b));
      }
      builder->tensor(name, type, shape, values);
      return;
    }
    case 2:
      builder->meta(field_name(in, problem_metadata_keys(), source_metadata_keys()), in->pick(kValues));
      return;
    default:
      builder->drop(field_name(in, problem_tensor_names(), source_tensor_names()));
  }
}

void run(const uint8_t* data, size_t size) {
  Input in(data, size);
  const Builder kinds[] = {ragged(), paged(), page_list(), gathered_584(), mxfp4()};
  Builder builder = in.pick(kinds);
  for (int edits = 0; edits < 8 && !in.empty(); ++edits) bend(&in, &builder);
  Result<OwnedProblem> problem = builder.load();
  if (!problem.ok()) return;
  ResolvedProblem resolved;
  if (!validate(problem->problem, &resolved).ok()) return;
  PlanOptions options;
  options.workers = 1;
  (void)attend(problem->problem, options).ok();
}

}  // namespace
}  // namespace headwater::io

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headwater::io::run(data, size);
  return 0;
}
