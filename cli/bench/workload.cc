#include "cli/bench/workload.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "src/core/visibility.h"
#include "src/formats/record.h"

namespace headwater::cli {
namespace {

constexpr int64_t kMaxCopies = 4096;
constexpr int64_t kMaxShapeBytes = int64_t{3} << 29;  // 1.5 GiB of KV a shape
constexpr int32_t kBlobRecords = 61;                  // a prime, so that pages do not repeat each other

// The same numbers on every machine: the sum of 12 uniform values is near enough to a normal one.
class Normal {
 public:
  explicit Normal(uint32_t seed) : engine_(seed) {}
  float operator()() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += engine_() / 4294967296.0;
    return static_cast<float>(sum);
  }

 private:
  std::mt19937 engine_;
};

bool is_record(Format format) {  // columns of several kinds: bytes depend on the width
  const FormatInfo& info = format_info(format);
  return info.fixed_width != 0 || info.planar || format == Format::kMxfp4RopeBf16;
}

void repeat(const Bytes& blob, Bytes* to) {
  size_t done = std::min(blob.size(), to->size());
  std::memcpy(to->data(), blob.data(), done);
  while (done < to->size()) {
    const size_t n = std::min(done, to->size() - done);
    std::memcpy(to->data() + done, to->data(), n);
    done += n;
  }
}

Format element_format(Type type) { return type == Type::kF32 ? Format::kF32 : type == Type::kF16 ? Format::kF16 : Format::kBf16; }

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

Bytes::Bytes(size_t n, bool huge_pages) : size_(n) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const int64_t alignment = huge_pages && static_cast<int64_t>(n) >= kHugePage ? kHugePage : 4096;
  const auto bytes = static_cast<size_t>(round_up(static_cast<int64_t>(std::max<size_t>(n, 1)), alignment));
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(alignment), bytes)));
  if (data_ == nullptr) throw std::bad_alloc();
#ifdef __linux__
  if (alignment == kHugePage) madvise(data_.get(), bytes, MADV_HUGEPAGE);  // before the first touch; refused: pages stay small
#endif
}

void Bytes::Free::operator()(std::byte* p) const { std::free(p); }

Arenas::Key Arenas::key(Format format, int32_t width, int32_t page_size, bool value) {
  Key key;
  key.format = format;
  key.width = is_record(format) ? width : 0;
  key.page_size = format_info(format).planar ? page_size : 0;
  key.value = value;
  return key;
}

void Arenas::reserve(const Key& key, int64_t bytes, int64_t scale_bytes) {
  Arena& arena = arenas_[key];
  arena.bytes = std::max(arena.bytes, bytes);
  arena.scale_bytes = std::max(arena.scale_bytes, scale_bytes);
}

Status Arenas::fill() {
  for (auto& [key, arena] : arenas_) {
    Normal normal(static_cast<uint32_t>(key.format) * 2 + (key.value ? 1 : 0) + 1);
    const int32_t width = key.width != 0 ? key.width : kMaxWidth;
    const int64_t row = record_row_bytes(key.format, width);
    const int64_t apart = record_scale_bytes(key.format, width);
    const int64_t page = key.page_size > 0 ? record_page_bytes(key.format, width, key.page_size) : 0;
    const int64_t records = key.page_size > 0 ? int64_t{key.page_size} * 2 : kBlobRecords;
    Bytes blob(static_cast<size_t>(page > 0 ? 2 * page : row * records));
    Bytes scales(static_cast<size_t>(std::max<int64_t>(1, apart * records)));
    std::memset(blob.data(), 0, blob.size());
    std::vector<float> values(static_cast<size_t>(width));
    const int64_t tail = formats::resolve(key.format, width).tail_bytes;
    for (int64_t i = 0; i < records; ++i) {
      for (float& v : values) v = normal();
      std::byte* to = blob.data() + i * row;
      std::byte* to_scales = scales.data() + i * apart;
      if (page > 0) {
        std::byte* const base = blob.data() + i / key.page_size * page;
        to = base + i % key.page_size * row;
        to_scales = base + key.page_size * row + i % key.page_size * tail;
      }
      const float scale = format_info(key.format).takes_scale ? kDataScale : 1.0F;
      if (Status status = encode_record(key.format, width, values.data(), to, to_scales, scale); !status.ok()) return status;
    }
    arena.data = std::make_unique<Bytes>(static_cast<size_t>(arena.bytes), huge_pages_);
    repeat(blob, arena.data.get());
    arena.scales = std::make_unique<Bytes>(static_cast<size_t>(arena.scale_bytes), huge_pages_);
    if (arena.scale_bytes > 0) repeat(scales, arena.scales.get());
  }
  return {};
}

int64_t Arenas::bytes() const {
  int64_t sum = 0;
  for (const auto& [key, arena] : arenas_) sum += arena.bytes + arena.scale_bytes;
  return sum;
}

int64_t Workload::tensor_bytes(bool value, int64_t pages) const {
  const Format format = value ? shape_.v_format : shape_.k_format;
  const int32_t width = value ? shape_.d_v : shape_.d_qk;
  if (format_info(format).planar) return pages * record_page_bytes(format, width, shape_.page_size) * shape_.kv_heads;
  return pages * std::max(1, shape_.page_size) * shape_.kv_heads * record_row_bytes(format, width);
}

int64_t Workload::scale_bytes(bool value, int64_t pages) const {
  const Format format = value ? shape_.v_format : shape_.k_format;
  const int32_t width = value ? shape_.d_v : shape_.d_qk;
  return pages * std::max(1, shape_.page_size) * shape_.kv_heads * record_scale_bytes(format, width);
}

void Workload::count_work() {
  double pairs = 0.0;
  double entries = 0.0;
  for (const int32_t kv_len : shape_.kv_lens) {
    Span span{kv_len, 0};
    for (int32_t i = 0; i < shape_.q_len; ++i) {
      if (shape_.rule == RuleKind::kGathered) {
        const int32_t n = std::min(shape_.rule_value, kv_len);
        pairs += n;
        entries += n;
        span = {0, kv_len};
        continue;
      }
      const EntryRange seen = visible_range(shape_.rule, shape_.rule_value, 1, 0, 1, kv_len, int64_t{kv_len} - shape_.q_len + i);
      if (seen.end <= seen.begin) continue;
      pairs += static_cast<double>(seen.end - seen.begin);
      span.begin = std::min(span.begin, seen.begin);
      span.end = std::max(span.end, seen.end);
    }
    span.begin = std::min(span.begin, span.end);
    if (shape_.rule != RuleKind::kGathered) entries += static_cast<double>(span.end - span.begin);
    spans_.push_back(span);
  }
  flops_ = pairs * shape_.heads * 2.0 * (shape_.d_qk + shape_.d_v);
  const auto record = [](Format format, int32_t width) {
    const formats::RecordLayout layout = formats::resolve(format, width);
    return static_cast<double>(layout.row_bytes) + layout.tail_bytes + layout.apart_bytes;
  };
  kv_bytes_ =
      entries * shape_.kv_heads * (record(shape_.k_format, shape_.d_qk) + (shape_.shared ? 0.0 : record(shape_.v_format, shape_.d_v)));
}

Workload::Workload(const Shape& shape, int64_t cold_bytes, Arenas* arenas) : shape_(shape) {
  count_work();
  const bool ragged = shape_.page_size == 0;
  kv_indptr_.push_back(0);
  for (size_t r = 0; r < spans_.size(); ++r) {
    const int32_t kv_len = shape_.kv_lens[r];
    kv_indptr_.push_back(kv_indptr_.back() + kv_len);
    if (ragged) {
      pages_of_copy_ += kv_len;
    } else if (spans_[r].end > spans_[r].begin) {
      pages_of_copy_ += (spans_[r].end - 1) / shape_.page_size - spans_[r].begin / shape_.page_size + 1;
    }
    if (!ragged) max_pages_ = std::max<int64_t>(max_pages_, (kv_len + shape_.page_size - 1) / shape_.page_size);
  }
  const double one = static_cast<double>(
      std::max<int64_t>(1, tensor_bytes(false, pages_of_copy_) + scale_bytes(false, pages_of_copy_) +
                               (shape_.shared ? 0 : tensor_bytes(true, pages_of_copy_) + scale_bytes(true, pages_of_copy_))));
  const double wanted = std::ceil(static_cast<double>(cold_bytes) / std::max(1.0, kv_bytes_));
  copies_ = static_cast<int64_t>(std::clamp(wanted, 1.0, std::min<double>(kMaxCopies, std::max(1.0, kMaxShapeBytes / one))));
  const int64_t pages = pages_of_copy_ * copies_ + (ragged ? 0 : 1);
  for (const bool value : {false, true}) {
    if (value && shape_.shared) continue;
    const Format format = value ? shape_.v_format : shape_.k_format;
    arenas->reserve(Arenas::key(format, value ? shape_.d_v : shape_.d_qk, shape_.page_size, value), tensor_bytes(value, pages),
                    scale_bytes(value, pages));
  }
}

// Page 0 stands for all pages that no query sees; the visible ones of copy c follow those of copy c - 1.
void Workload::lay_out_pages() {
  const auto batch = static_cast<int64_t>(shape_.kv_lens.size());
  tables_.assign(static_cast<size_t>(copies_ * batch * max_pages_), 0);
  int32_t next = 1;
  for (int64_t c = 0; c < copies_; ++c) {
    for (int64_t r = 0; r < batch; ++r) {
      const Span& span = spans_[static_cast<size_t>(r)];
      if (span.end <= span.begin) continue;
      for (int64_t p = span.begin / shape_.page_size; p <= (span.end - 1) / shape_.page_size; ++p) {
        tables_[static_cast<size_t>((c * batch + r) * max_pages_ + p)] = next++;
      }
    }
  }
}

// Every query's list: distinct random positions of its request.
void Workload::make_indices() {
  std::mt19937 engine(3);
  for (const int32_t kv_len : shape_.kv_lens) {
    std::vector<int32_t> order(static_cast<size_t>(kv_len));
    std::iota(order.begin(), order.end(), 0);
    const int32_t n = std::min(shape_.rule_value, kv_len);
    for (int32_t row = 0; row < shape_.q_len; ++row) {
      for (int32_t i = 0; i < n; ++i) {
        std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i) + engine() % static_cast<uint32_t>(kv_len - i)]);
      }
      indices_.insert(indices_.end(), order.begin(), order.begin() + n);
      indices_.insert(indices_.end(), static_cast<size_t>(shape_.rule_value - n), -1);
      topk_lens_.push_back(n);
    }
  }
}

KvTensor Workload::make_tensor(const Arenas& arenas, int64_t copy, bool value) const {
  KvTensor t;
  t.format = value ? shape_.v_format : shape_.k_format;
  t.width = value ? shape_.d_v : shape_.d_qk;
  const Arenas::Key key = Arenas::key(t.format, t.width, shape_.page_size, value);
  const bool ragged = shape_.page_size == 0;
  t.data = arenas.data(key) + (ragged ? tensor_bytes(value, pages_of_copy_ * copy) : 0);
  if (format_info(t.format).scales_apart) {
    t.scales = arenas.scales(key) + (ragged ? scale_bytes(value, pages_of_copy_ * copy) : 0);
  }
  if (format_info(t.format).takes_scale) t.scale = Scale::constant(kDataScale);
  return t;
}

Source Workload::make_source(const Arenas& arenas, int64_t copy) const {
  const auto batch = static_cast<int64_t>(shape_.kv_lens.size());
  Source s;
  s.k = make_tensor(arenas, copy, false);
  if (!shape_.shared) s.v = make_tensor(arenas, copy, true);
  s.shared = shape_.shared;
  s.value_width = shape_.d_v;
  s.heads = shape_.kv_heads;
  Addressing& a = s.addressing;
  if (shape_.page_size == 0) {
    a.kind = AddressingKind::kRagged;
    a.kv_indptr = kv_indptr_.data();
    a.num_pages = pages_of_copy_;
  } else {
    a.kind = AddressingKind::kBlockTable;
    a.page_size = shape_.page_size;
    a.num_pages = pages_of_copy_ * copies_ + 1;
    a.block_table = tables_.data() + copy * batch * max_pages_;
    a.max_pages = max_pages_;
    a.seq_lens = shape_.kv_lens.data();
  }
  switch (shape_.rule) {
    case RuleKind::kWindow:
      s.rule = Rule::window(shape_.rule_value);
      break;
    case RuleKind::kGathered:
      s.rule = Rule::gathered(indices_.data(), shape_.rule_value, topk_lens_.data(), IndexSpace::kPosition);
      break;
    default:
      s.rule.kind = shape_.rule;
  }
  return s;
}

void Workload::bind(const Arenas& arenas) {
  const auto batch = static_cast<int32_t>(shape_.kv_lens.size());
  for (int32_t r = 0; r <= batch; ++r) qo_indptr_.push_back(r * shape_.q_len);
  if (shape_.page_size > 0) lay_out_pages();
  if (shape_.rule == RuleKind::kGathered) make_indices();
  const int64_t rows = int64_t{batch} * shape_.q_len * shape_.heads;
  Normal normal(7);
  const Format q_format = element_format(shape_.q_type);
  const int64_t q_row = record_row_bytes(q_format, shape_.d_qk);
  q_ = std::make_unique<Bytes>(static_cast<size_t>(rows * q_row));
  std::vector<float> values(static_cast<size_t>(shape_.d_qk));
  for (int64_t i = 0; i < rows; ++i) {
    for (float& v : values) v = normal();
    (void)encode_record(q_format, shape_.d_qk, values.data(), q_->data() + i * q_row, nullptr);
  }
  out_ = std::make_unique<Bytes>(static_cast<size_t>(rows * shape_.d_v * type_bits(shape_.out_type) / 8));
  std::memset(out_->data(), 0xff, out_->size());  // NaN until a run writes it
  lse_.assign(static_cast<size_t>(rows), std::nanf(""));
  for (int32_t h = 0; shape_.sinks && h < shape_.heads; ++h) sinks_.push_back(normal());
  for (int64_t c = 0; c < copies_; ++c) {
    sources_.push_back({make_source(arenas, c)});
    Problem p;
    p.q = {q_->data(), shape_.q_type, int64_t{batch} * shape_.q_len, shape_.heads, shape_.d_qk};
    p.requests = batch;
    p.qo_indptr = qo_indptr_.data();
    p.sinks = shape_.sinks ? sinks_.data() : nullptr;
    p.sm_scale = 1.0F / std::sqrt(static_cast<float>(shape_.d_qk));
    p.out = {out_->data(), shape_.out_type};
    p.lse.data = lse_.data();
    problems_.push_back(p);
  }
  for (size_t c = 0; c < problems_.size(); ++c) problems_[c].sources = sources_[c];
}

std::unique_ptr<Workload::Part> Workload::make_part(int32_t request, int32_t kv_head) const {
  auto part = std::make_unique<Part>();
  const Problem& whole = problem(0);
  const int32_t rows = std::min(shape_.q_len, 4);
  const int32_t group = shape_.heads / shape_.kv_heads;
  const int32_t heads = std::min(group, 4);
  const int64_t row = int64_t{request + 1} * shape_.q_len - rows;
  const int64_t head = int64_t{kv_head} * group;
  const int64_t q_bytes = int64_t{shape_.d_qk} * type_bits(shape_.q_type) / 8;
  const int64_t out_bytes = int64_t{shape_.d_v} * type_bits(shape_.out_type) / 8;

  Source s = whole.sources[0];
  const auto at_head = [&](KvTensor* t) {
    if (shape_.kv_heads == 1) return;  // dense already; the only case of planar records
    const int64_t record = record_row_bytes(t->format, t->width);
    const int64_t scales = record_scale_bytes(t->format, t->width);
    const int64_t page = std::max(1, shape_.page_size);
    t->data = static_cast<const std::byte*>(t->data) + kv_head * record;
    t->row_stride_bytes = record * shape_.kv_heads;
    t->page_stride_bytes = t->row_stride_bytes * page;
    if (t->scales == nullptr) return;
    t->scales = static_cast<const std::byte*>(t->scales) + kv_head * scales;
    t->scale_row_stride_bytes = scales * shape_.kv_heads;
    t->scale_page_stride_bytes = t->scale_row_stride_bytes * page;
  };
  at_head(&s.k);
  if (!s.shared) at_head(&s.v);
  s.heads = 1;
  if (s.addressing.kv_indptr != nullptr) s.addressing.kv_indptr += request;
  if (s.addressing.block_table != nullptr) s.addressing.block_table += request * max_pages_;
  if (s.addressing.seq_lens != nullptr) s.addressing.seq_lens += request;
  if (s.rule.indices != nullptr) {
    s.rule.indices = static_cast<const int32_t*>(s.rule.indices) + row * shape_.rule_value;
    s.rule.topk_lens += row;
  }
  part->sources = {s};
  part->indptr = {0, rows};
  part->context_len = shape_.kv_lens[static_cast<size_t>(request)];

  Problem& p = part->problem;
  p = whole;
  p.sources = part->sources;
  p.requests = 1;
  p.qo_indptr = part->indptr.data();
  p.context_lens = &part->context_len;
  p.q.data = q_->data() + (row * shape_.heads + head) * q_bytes;
  p.q.total = rows;
  p.q.heads = heads;
  p.q.row_stride_bytes = shape_.heads * q_bytes;
  p.out.data = out_->data() + (row * shape_.heads + head) * out_bytes;
  p.out.row_stride_bytes = shape_.heads * out_bytes;
  p.lse.data = whole.lse.data + row * shape_.heads + head;
  p.lse.token_stride = shape_.heads;
  if (p.sinks != nullptr) p.sinks += head;
  return part;
}

std::vector<std::unique_ptr<Workload::Part>> Workload::parts_to_check() const {
  // The first and the last request up to 16k entries, else the shortest one; different KV heads.
  constexpr int32_t kLongest = 16384;
  const std::vector<int32_t>& lens = shape_.kv_lens;
  const auto batch = static_cast<int32_t>(lens.size());
  int32_t first = -1;
  int32_t last = -1;
  for (int32_t r = 0; r < batch; ++r) {
    if (lens[static_cast<size_t>(r)] > kLongest) continue;
    if (first < 0) first = r;
    last = r;
  }
  if (first < 0) first = last = static_cast<int32_t>(std::min_element(lens.begin(), lens.end()) - lens.begin());
  std::vector<std::unique_ptr<Part>> parts;
  parts.push_back(make_part(first, 0));
  if (last != first || shape_.kv_heads > 1) parts.push_back(make_part(last, shape_.kv_heads - 1));
  return parts;
}

}  // namespace headwater::cli
