#include "cli/formats/encoded.h"

#include <numeric>
#include <utility>

namespace headwater::cli::formats {
namespace {

constexpr int32_t kPlanarPage = 64;  // rows of a page when bytes per entry are counted

Scale scale_of(const std::vector<float>& values) {
  return values.empty() ? Scale{} : Scale::array(values.data(), static_cast<int32_t>(values.size()));
}

double record_bytes(Format format, int32_t width) {
  return static_cast<double>(record_page_bytes(format, width, kPlanarPage)) / kPlanarPage +
         static_cast<double>(record_scale_bytes(format, width));
}

}  // namespace

double entry_bytes(const Rows& rows, Format k_format, Format v_format) {
  return rows.heads * (record_bytes(k_format, rows.d_qk) + (rows.shared ? 0.0 : record_bytes(v_format, rows.d_v)));
}

Result<Encoded> Encoded::make(const Rows& rows, Format k_format, Format v_format, ScaleValues scales, Layout layout) {
  Encoded encoded;
  encoded.scales_ = std::make_unique<ScaleValues>(std::move(scales));
  Source& s = encoded.source_;
  const int64_t pages = (rows.count * layout.copies + layout.page_size - 1) / layout.page_size;
  const auto tensor = [&](Format format, int32_t width, const std::vector<float>& scale) {
    KvTensor t;
    t.format = format;
    t.width = width;
    t.scale = scale_of(scale);
    const auto allocate = [&](int64_t page_bytes) {
      encoded.bytes_.emplace_back(static_cast<size_t>(pages * rows.heads * page_bytes));
      return encoded.bytes_.back().data();
    };
    t.data = allocate(record_page_bytes(format, width, layout.page_size));
    if (format_info(format).scales_apart) t.scales = allocate(record_scale_bytes(format, width) * layout.page_size);
    return t;
  };
  s.k = tensor(k_format, rows.d_qk, encoded.scales_->k);
  if (!rows.shared) s.v = tensor(v_format, rows.d_v, encoded.scales_->v);
  s.shared = rows.shared;
  s.value_width = rows.shared ? rows.d_v : 0;
  s.heads = rows.heads;
  s.addressing.kind = AddressingKind::kPool;
  s.addressing.page_size = layout.page_size;
  s.addressing.num_pages = pages;
  s.rule.kind = RuleKind::kGathered;
  for (const io::AlignedBytes& bytes : encoded.bytes_) {
    if (!bytes.data()) return invalid("no memory for " + std::to_string(rows.count * layout.copies) + " rows of KV");
  }
  Status status = encoded.store(rows, layout.copies);
  if (!status.ok()) return status;
  return encoded;
}

Status Encoded::store(const Rows& rows, int64_t copies) {
  AppendRows from;
  from.k = rows.k.data();
  from.v = rows.shared ? nullptr : rows.v.data();
  from.type = Type::kF32;
  from.count = rows.count;
  std::vector<int64_t> slots(static_cast<size_t>(rows.count));
  for (int64_t copy = 0; copy < copies; ++copy) {
    std::iota(slots.begin(), slots.end(), copy * rows.count);
    Status status = append(source_, from, slots.data());
    if (!status.ok()) return status;
  }
  return {};
}

Status Encoded::decode(Rows* rows) const {
  std::vector<int64_t> slots(static_cast<size_t>(rows->count));
  std::iota(slots.begin(), slots.end(), 0);
  return gather(source_, slots.data(), rows->count, rows->k.data(), rows->shared ? nullptr : rows->v.data());
}

FlatProblem::FlatProblem(const Layer& layer, const std::vector<Encoded>& encoded, const std::vector<Encoded>& newest, int32_t recent) {
  for (size_t s = 0; s < layer.sources.size(); ++s) {
    add_source(layer, s, encoded[s], false, recent);
    if (recent > 0) add_source(layer, s, newest[s], true, recent);
  }
  qo_indptr_.resize(static_cast<size_t>(layer.queries) + 1);
  std::iota(qo_indptr_.begin(), qo_indptr_.end(), 0);
  out_.resize(static_cast<size_t>(layer.queries) * static_cast<size_t>(layer.heads) * static_cast<size_t>(layer.d_v));
  problem_.q.data = layer.q.data();
  problem_.q.type = Type::kF32;
  problem_.q.total = layer.queries;
  problem_.q.heads = layer.heads;
  problem_.q.width = layer.d_qk;
  problem_.requests = layer.queries;
  problem_.qo_indptr = qo_indptr_.data();
  problem_.sources = sources_;
  if (!layer.sinks.empty()) {
    problem_.sinks = layer.sinks.data();
    problem_.sinks_request_stride = layer.heads;
  }
  problem_.sm_scale = layer.sm_scale;
  problem_.logits_soft_cap = layer.softcap;
  problem_.out.data = out_.data();
  problem_.out.type = Type::kF32;
}

void FlatProblem::add_source(const Layer& layer, size_t index, const Encoded& encoded, bool young, int32_t recent) {
  const Visible& visible = layer.visible[index];
  auto list = std::make_unique<PageList>();
  list->indices.reserve(1);  // an empty list is a legal one, with an address
  for (size_t query = 0; query + 1 < visible.begin.size(); ++query) {
    for (int64_t i = visible.begin[query]; i < visible.begin[query + 1]; ++i) {
      if ((visible.age[static_cast<size_t>(i)] < recent) == young) list->indices.push_back(visible.entry[static_cast<size_t>(i)]);
    }
    list->lens.push_back(static_cast<int32_t>(list->indices.size()) - list->indptr.back());
    list->indptr.push_back(static_cast<int32_t>(list->indices.size()));
  }
  Source source = encoded.source();
  source.rule = Rule::full();
  source.addressing.kind = AddressingKind::kPageList;
  source.addressing.kv_indptr = list->indptr.data();
  source.addressing.kv_indices = list->indices.data();
  source.addressing.num_indices = static_cast<int64_t>(list->indices.size());
  source.addressing.seq_lens = list->lens.data();
  lists_.push_back(std::move(list));
  sources_.push_back(source);
}

}  // namespace headwater::cli::formats
