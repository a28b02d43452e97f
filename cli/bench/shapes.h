// Shape files: what `headwater bench` measures. One shape a line,
//
//   NAME key=value key=value ...        # a comment line above gives the shape's origin
//
//   batch=N q_len=N heads=N kv_heads=N d_qk=N d_v=N     (d=N sets both widths; q_len 1, batch 1 and kv_heads 1 by default)
//   kv_len=A | AxN,B,... | lognormal(MEDIAN,SIGMA)       entries of each request; one value serves the whole batch
//   format=NAME | k_format=NAME v_format=NAME            record formats (default bf16)
//   shared=1                                             V is the first d_v columns of K (MLA, V4)
//   rule=full | causal | window:LEFT | gathered:TOPK     (default causal)
//   page=N                                               entries of a page; 0 = ragged (default 64)
//   sinks=1 q=bf16|f16|f32 out=bf16|f16|f32
//   reach=R aim=R                                        goals for min/floor, only reported
//   twin=NAME                                            the same work in another form: floor ratios are compared
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headwater/headwater.h"

namespace headwater::cli {

struct Shape {
  std::string name;
  std::string origin;
  int32_t batch = 1;
  int32_t q_len = 1;
  int32_t heads = 0;
  int32_t kv_heads = 1;
  int32_t d_qk = 0;
  int32_t d_v = 0;
  std::vector<int32_t> kv_lens;  // [batch]
  Format k_format = Format::kBf16;
  Format v_format = Format::kBf16;
  bool shared = false;
  RuleKind rule = RuleKind::kCausal;
  int32_t rule_value = 0;  // window_left or topk
  int32_t page_size = 64;
  bool sinks = false;
  Type q_type = Type::kBf16;
  Type out_type = Type::kBf16;
  double reach = 0.0;  // 0: none
  double aim = 0.0;
  std::string twin;
};

// Errors name the file and line.
[[nodiscard]] Result<std::vector<Shape>> read_shapes(const std::string& path);
[[nodiscard]] Result<std::vector<Shape>> parse_shapes(const std::string& text, const std::string& file_name);

}  // namespace headwater::cli
