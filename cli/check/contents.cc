// The bytes of a case: K and V in every layout with poison in all that nobody sees, queries, scales, sinks, guarded outputs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/check/problem.h"
#include "src/core/resolved.h"
#include "src/formats/record.h"

namespace headwater::conformance {
namespace {

using namespace choice;

constexpr int kPoison = 0xff;  // NaN in every element and scale type that has one
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// ---- K and V -----------------------------------------------------------------------------------------------------------------

// Sizes of one stored tensor.
struct Extent {
  int64_t pages;  // 1 for ragged storage
  int64_t rows;   // of a page
  int64_t heads;
  int64_t row_bytes;
  int64_t unit;        // data and strides are multiples of it
  int64_t page_bytes;  // packed
  bool planar;
};

Extent extent_of(const Source& source, const KvTensor& tensor) {
  const Addressing& a = source.addressing;
  const bool ragged = a.kind == AddressingKind::kRagged;
  const FormatInfo& info = format_info(tensor.format);
  Extent x{};
  x.pages = ragged ? 1 : a.num_pages;
  x.rows = ragged ? a.num_pages : a.page_size;
  x.heads = source.heads;
  x.row_bytes = record_row_bytes(tensor.format, tensor.width);
  x.unit = tensor.format == Format::kF32 ? 4 : info.is_float ? 2 : 1;
  x.planar = info.planar;
  x.page_bytes = info.planar ? record_page_bytes(tensor.format, tensor.width, a.page_size) : x.rows * x.heads * x.row_bytes;
  return x;
}

// Sets strides by layout (not interleaved), allocates and poisons.
void place_tensor(Draft* d, int32_t layout, const Extent& x, bool ragged, KvTensor* t) {
  Random& random = d->random;
  int64_t misalign = 0;
  int64_t head = x.row_bytes;
  int64_t row = x.heads * head;
  int64_t page = x.page_bytes;
  if (layout == kPadded || layout == kOdd) {
    const int64_t pad = layout == kPadded ? 16 * random.integer(1, 3) : x.unit * (2 * random.integer(0, 3) + 1);
    if (!x.planar) {
      head += random.one_in(2) ? pad : 0;
      row = x.heads * head + pad;
      page = x.rows * row;
    }
    page += pad;
    misalign = layout == kOdd ? x.unit * (2 * random.integer(0, 3) + 1) : 0;
  } else if (layout == kHeadFirst) {
    row = x.row_bytes;
    head = x.rows * row;
    page = x.heads * head;
  } else if (layout == kExpanded) {
    const int64_t which = random.integer(0, 2);
    if (which == 0) row = 0;
    if (which == 1) head = 0;
    if (which == 2) page = 0;
  }
  int64_t bytes = 0;
  if (x.pages > 0 && x.rows > 0) {
    const int64_t inside = x.planar ? x.page_bytes : (x.rows - 1) * row + (x.heads - 1) * head + x.row_bytes;
    bytes = (x.pages - 1) * page + inside;
  }
  t->data = d->made->arena.take(static_cast<size_t>(bytes), static_cast<size_t>(misalign), kPoison);
  if (layout == kDenseLayout) return;
  t->head_stride_bytes = head;
  t->row_stride_bytes = row;
  t->page_stride_bytes = ragged && random.one_in(2) ? kDense : page;
}

// K and V of a page (of a row, for ragged storage) one behind the other: views of one allocation.
void place_interleaved(Draft* d, Source* source) {
  const bool ragged = source->addressing.kind == AddressingKind::kRagged;
  const Extent k = extent_of(*source, source->k);
  const Extent v = extent_of(*source, source->v);
  const int64_t unit = std::max(k.unit, v.unit);
  const int64_t k_block = round_up(ragged ? k.heads * k.row_bytes : k.page_bytes, unit);
  const int64_t block = k_block + round_up(ragged ? v.heads * v.row_bytes : v.page_bytes, unit);
  const int64_t count = ragged ? k.rows : k.pages;
  std::byte* at = d->made->arena.take(static_cast<size_t>(count * block), 0, kPoison);
  for (KvTensor* t : {&source->k, &source->v}) {
    const Extent& x = t == &source->k ? k : v;
    t->data = t == &source->k ? at : at + k_block;
    t->head_stride_bytes = x.row_bytes;
    t->row_stride_bytes = ragged ? block : x.heads * x.row_bytes;
    t->page_stride_bytes = ragged ? kDense : block;
  }
}

void place_scales(Draft* d, int32_t layout, const Source& source, KvTensor* t) {
  const int64_t apart = record_scale_bytes(t->format, t->width);
  if (apart == 0) return;
  const Extent x = extent_of(source, *t);
  const int64_t unit = t->format == Format::kInt8 ? 4 : 1;
  const int64_t blocks = apart / unit;
  int64_t block = unit;
  int64_t head = apart;
  int64_t row = x.heads * head;
  int64_t page = x.rows * row;
  if (layout == kPaddedScales) {
    head = apart + unit * d->random.integer(0, 3);
    row = x.heads * head + unit * d->random.integer(1, 5);
    page = x.rows * row + unit * d->random.integer(0, 3);
  } else if (layout == kColumnMajor) {
    row = unit;
    head = x.rows * row;
    block = x.heads * head;
    page = blocks * block;
  }
  const int64_t misalign = layout == kDenseScales ? 0 : unit * d->random.integer(0, 3);
  t->scales = d->made->arena.take(static_cast<size_t>(x.pages * page), static_cast<size_t>(misalign), kPoison);
  if (layout == kDenseScales) return;
  t->scale_block_stride_bytes = block;
  t->scale_head_stride_bytes = head;
  t->scale_row_stride_bytes = row;
  t->scale_page_stride_bytes = page;
}

void draw_scale(Draft* d, int32_t kind, int32_t heads, Scale* scale) {
  if (kind == kNoScale) return;
  const auto draw = [d] { return static_cast<float>(std::exp2(d->random.uniform(-5.0, 1.5))); };
  if (kind == kHostScale) {
    *scale = Scale::constant(draw());
    return;
  }
  std::vector<float> values(kind == kOneScale ? 1 : static_cast<size_t>(heads));
  for (float& value : values) value = draw();
  *scale = Scale::array(d->made->arena.copy(values), static_cast<int32_t>(values.size()));
}

void place_source(Draft* d, int32_t s) {
  const Spec& spec = d->spec();
  Source& source = d->made->sources[static_cast<size_t>(s)];
  const bool ragged = source.addressing.kind == AddressingKind::kRagged;
  const int32_t layout = spec.at(kKvLayout, s);
  draw_scale(d, spec.at(kKScale, s), source.heads, &source.k.scale);
  draw_scale(d, spec.at(kVScale, s), source.heads, &source.v.scale);
  if (layout == kInterleaved) {
    place_interleaved(d, &source);
  } else {
    place_tensor(d, layout, extent_of(source, source.k), ragged, &source.k);
    if (!source.shared) place_tensor(d, layout, extent_of(source, source.v), ragged, &source.v);
  }
  place_scales(d, spec.at(kScaleLayout, s), source, &source.k);
  if (!source.shared) place_scales(d, spec.at(kScaleLayout, s), source, &source.v);
}

// Normal values; a third of the rows with magnitudes that differ from block to block.
void draw_row(Random* random, float size, std::vector<float>* values) {
  const bool uneven = random->one_in(3);
  float factor = size;
  for (size_t i = 0; i < values->size(); ++i) {
    if (uneven && i % 16 == 0) factor = size * std::exp2(static_cast<float>(random->integer(-4, 1)));
    (*values)[i] = random->normal() * factor;
  }
}

// How strongly loud keys point along the shared direction, and all keys where scores are huge.
struct Strength {
  float loud = 0.0F;
  float all = 0.0F;
};

void write_record(const ResolvedSource& source, const ResolvedTensor& tensor, int64_t slot, int32_t head, BlockScaleRule rule,
                  const std::vector<float>& values) {
  const formats::RowRef ref = record_at(source, tensor, slot, head);
  formats::encode_row(tensor.layout, values.data(), tensor_scale(tensor, head), rule, const_cast<std::byte*>(ref.row),
                      const_cast<std::byte*>(ref.scales), ref.scale_block_stride);
  if (tensor.layout.format != Format::kE5m2) return;
  for (size_t i = 0; i < values.size(); ++i) {  // the encoder saturates; a reader must bear the codes of infinity
    if (std::isinf(values[i])) const_cast<std::byte*>(ref.row)[i] = values[i] > 0.0F ? std::byte{0x7c} : std::byte{0xfc};
  }
}

void fill_source(Draft* d, const ResolvedSource& source, const Draft::Entries& e, const Strength& strength) {
  Random& random = d->random;
  const auto rule = static_cast<BlockScaleRule>(random.integer(0, 2));
  std::vector<float> k(static_cast<size_t>(d->d_qk));
  std::vector<float> v(static_cast<size_t>(d->d_v));
  for (size_t slot = 0; slot < e.visible.size(); ++slot) {
    if (!e.visible[slot]) continue;
    for (int32_t head = 0; head < source.heads; ++head) {
      const bool loud = e.loud[slot];
      draw_row(&random, loud ? 0.25F : strength.all > 0.0F ? 0.5F : 1.0F, &k);
      const float along = loud ? strength.loud : strength.all;
      for (size_t i = 0; along != 0.0F && i < k.size(); ++i) k[i] += along * d->direction[i];
      draw_row(&random, 1.0F, &v);
      for (size_t i = 0; loud && i < v.size(); ++i) v[i] += (i + slot) % 2 == 0 ? 3.0F : -3.0F;
      for (const auto& fault : e.faults) {
        if (fault.slot != static_cast<int64_t>(slot) || (source.heads > 1 && random.one_in(2))) continue;
        std::vector<float>& into = fault.in_v && !source.shared ? v : k;
        const auto width = static_cast<int64_t>(fault.in_v && source.shared ? d->d_v : static_cast<int32_t>(into.size()));
        into[static_cast<size_t>(random.integer(0, width - 1))] = fault.value;
      }
      write_record(source, source.k, static_cast<int64_t>(slot), head, rule, k);
      if (!source.shared) write_record(source, source.v, static_cast<int64_t>(slot), head, rule, v);
    }
  }
}

// ---- queries -----------------------------------------------------------------------------------------------------------------

struct QueryPart {
  std::byte* data;
  int64_t row_stride;
  int64_t head_stride;
  int32_t width;
};

QueryPart place_query(Draft* d, int32_t layout, Type type, int32_t width) {
  Random& random = d->random;
  const int64_t unit = type_bits(type) / 8;
  int64_t misalign = 0;
  QueryPart part{nullptr, d->heads * width * unit, width * unit, width};
  if (layout == kPadded || layout == kOdd) {
    const int64_t pad = layout == kPadded ? 16 * random.integer(1, 2) : unit * (2 * random.integer(0, 3) + 1);
    part.head_stride += random.one_in(2) ? pad : 0;
    part.row_stride = d->heads * part.head_stride + pad;
    misalign = layout == kOdd ? pad : 0;
  } else if (layout == kHeadFirst) {
    part.row_stride = width * unit;
    part.head_stride = d->total_q * part.row_stride;
  } else if (layout == kExpanded) {
    (random.one_in(2) ? part.row_stride : part.head_stride) = 0;
  }
  const int64_t bytes = d->total_q == 0 ? 0 : (d->total_q - 1) * part.row_stride + (d->heads - 1) * part.head_stride + width * unit;
  part.data = d->made->arena.take(static_cast<size_t>(bytes), static_cast<size_t>(misalign), kPoison);
  return part;
}

float draw_query_scale(Draft* d) { return static_cast<float>(std::exp2(d->random.uniform(-6.0, 1.0))); }

void draft_query_scale(Draft* d) {
  QueryScale& scale = d->made->problem.q_scale;
  const int32_t kind = d->spec().at(kQScale);
  if (kind == kHostQScale) scale.value = draw_query_scale(d);
  if (kind == kOneQScale) scale.data = d->made->arena.copy(std::vector<float>{draw_query_scale(d)});
  if (kind != kRowQScale) return;
  const int64_t stride = d->heads + (d->random.one_in(2) ? 3 : 0);
  std::vector<float> values(static_cast<size_t>(d->total_q * stride), kNan);
  for (int64_t row = 0; row < d->made->live_rows(); ++row) {
    for (int32_t h = 0; h < d->heads; ++h) values[static_cast<size_t>(row * stride + h)] = draw_query_scale(d);
  }
  scale.data = d->made->arena.copy(values);
  scale.per_row = true;
  scale.row_stride = stride == d->heads && d->random.one_in(2) ? kDense : stride;
  scale.head_stride = scale.row_stride == kDense ? kDense : 1;
}

float query_scale(const Draft& d, int64_t row, int32_t h) {
  const QueryScale& s = d.made->problem.q_scale;
  if (!s.data) return s.value;
  return s.per_row ? s.data[row * (s.row_stride == kDense ? d.heads : s.row_stride) + h] : *s.data;
}

// Every query leans along the shared direction where loud keys or huge scores need it.
void draft_queries(Draft* d, bool lean) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  Problem& p = d->made->problem;
  constexpr std::array<Type, 4> kTypes = {Type::kBf16, Type::kF16, Type::kF32, Type::kE4m3};
  constexpr std::array<Format, 4> kFormats = {Format::kBf16, Format::kF16, Format::kF32, Format::kE4m3};
  const auto kind = static_cast<size_t>(spec.at(kQType));
  const int32_t tail = spec.at(kQTail) == 1 ? static_cast<int32_t>(random.integer(1, std::min(d->d_qk - 1, 64))) : 0;
  const int32_t layout = spec.at(kQLayout);
  std::vector<QueryPart> parts = {place_query(d, layout, kTypes[kind], d->d_qk - tail)};
  p.q = {parts[0].data, kTypes[kind], d->total_q, d->heads, parts[0].width};
  if (layout != kDenseLayout) {
    p.q.row_stride_bytes = parts[0].row_stride;
    p.q.head_stride_bytes = parts[0].head_stride;
  }
  if (tail > 0) {
    parts.push_back(place_query(d, layout, kTypes[kind], tail));
    p.q_tail = {parts[1].data, tail};
    if (layout != kDenseLayout) {
      p.q_tail.row_stride_bytes = parts[1].row_stride;
      p.q_tail.head_stride_bytes = parts[1].head_stride;
    }
  }
  draft_query_scale(d);
  const int64_t bad_row = spec.at(kNonFinite) == kQNonFinite ? random.integer(0, d->made->live_rows() - 1) : -1;
  const auto bad_head = static_cast<int32_t>(random.integer(0, d->heads - 1));
  std::vector<float> q(static_cast<size_t>(d->d_qk));
  for (int64_t row = 0; row < d->made->live_rows(); ++row) {
    for (int32_t h = 0; h < d->heads; ++h) {
      for (size_t i = 0; i < q.size(); ++i) q[i] = random.normal() * (lean ? 0.5F : 1.0F) + (lean ? d->direction[i] : 0.0F);
      if (row == bad_row && h == bad_head)
        q[static_cast<size_t>(random.integer(0, d->d_qk - 1))] = random.one_in(2) ? kNan : random.one_in(2) ? kInf : -kInf;
      int32_t column = 0;
      for (const QueryPart& part : parts) {
        formats::encode_row(formats::resolve(kFormats[kind], part.width), q.data() + column, query_scale(*d, row, h),
                            BlockScaleRule::kRoundUp, part.data + row * part.row_stride + h * part.head_stride, nullptr, 0);
        column += part.width;
      }
    }
  }
}

// ---- the rest ----------------------------------------------------------------------------------------------------------------

void draft_sinks(Draft* d) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  Problem& p = d->made->problem;
  if (spec.at(kSinks) == kNoSinks) return;
  const int64_t stride = spec.at(kSinks) == kHeadSinks ? 0 : d->heads + (random.one_in(2) ? random.integer(1, 3) : 0);
  const int64_t rows = spec.at(kSinks) == kHeadSinks ? 1 : d->requests;
  std::vector<float> values(static_cast<size_t>(stride == 0 ? d->heads : rows * stride), kNan);
  const float size = spec.at(kScores) == kUsualScores ? 1.0F : random.one_in(2) ? 1e5F : 1.0F;
  const float special = spec.at(kSinkValue) == kNegInfSink ? -kInf : spec.at(kSinkValue) == kPosInfSink ? kInf : kNan;
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t certain = random.integer(0, d->heads - 1);
    for (int64_t h = 0; h < d->heads; ++h) {  // all distinct
      float value = (static_cast<float>(h % 9) * 0.83F - 2.0F + 0.3F * random.normal()) * size;
      if (spec.at(kSinkValue) != kUsualSink && (h == certain || random.one_in(3))) value = special;
      values[static_cast<size_t>(b * stride + h)] = value;
    }
  }
  p.sinks = d->made->arena.copy(values);
  p.sinks_request_stride = stride;
}

void draft_out(Draft* d) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  Case* made = d->made;
  constexpr std::array<Type, 3> kTypes = {Type::kBf16, Type::kF16, Type::kF32};
  const Type type = kTypes[static_cast<size_t>(spec.at(kOutType))];
  const int64_t unit = type_bits(type) / 8;
  const int64_t width = d->d_v * unit;
  const int32_t layout = spec.at(kOutLayout);
  int64_t head = width;
  int64_t row = d->heads * head;
  int64_t misalign = 0;
  if (layout == kPadded || layout == kOdd) {
    const int64_t pad = layout == kPadded ? 16 * random.integer(1, 2) : unit * (2 * random.integer(0, 3) + 1);
    head += random.one_in(2) ? pad : 0;
    row = d->heads * head + pad;
    misalign = layout == kOdd ? pad : 0;
  } else if (layout == kHeadFirst) {
    row = width;
    head = std::max<int64_t>(d->total_q, 1) * row;
  }
  const int64_t bytes = d->total_q == 0 ? 0 : (d->total_q - 1) * row + (d->heads - 1) * head + width;
  made->out = Guarded(static_cast<size_t>(bytes), static_cast<size_t>(misalign));
  for (int64_t r = 0; r < made->live_rows(); ++r) {
    for (int64_t h = 0; h < d->heads; ++h) made->out.allow(static_cast<size_t>(r * row + h * head), static_cast<size_t>(width));
  }
  made->problem.out.data = made->out.data();
  made->problem.out.type = type;
  if (layout == kDenseLayout) return;
  made->problem.out.row_stride_bytes = row;
  made->problem.out.head_stride_bytes = head;
}

void draft_lse(Draft* d) {
  Case* made = d->made;
  const int32_t form = d->spec().at(kLse);
  if (form == kNoLse) return;
  LseOutput& lse = made->problem.lse;
  int64_t longest = 1;
  for (const int32_t length : d->q_lens) longest = std::max<int64_t>(longest, length);
  int64_t token = d->heads + (d->random.one_in(2) ? 0 : 3);
  int64_t head = 1;
  int64_t request = 0;
  int64_t floats = d->total_q * token;
  if (form == kHeadsTokens) {
    token = 1;
    head = std::max<int64_t>(d->total_q, 1) + (d->random.one_in(2) ? 0 : 2);
    floats = d->heads * head;
  } else if (form == kRequestHeadsQ) {
    token = 1;
    head = longest + (d->random.one_in(2) ? 0 : 2);
    request = d->heads * head;
    floats = d->requests * request;
    lse.request_stride = request;
  }
  made->lse = Guarded(static_cast<size_t>(floats) * sizeof(float), 0);
  lse.data = reinterpret_cast<float*>(made->lse.data());
  if (form != kTokensHeads || token != d->heads || d->random.one_in(2)) {
    lse.token_stride = token;
    lse.head_stride = head;
  }
  for (size_t b = 0; b < d->q_lens.size(); ++b) {
    for (int64_t i = 0; i < d->q_lens[b]; ++i) {
      const int64_t at = form == kRequestHeadsQ ? static_cast<int64_t>(b) * request + i * token : (made->qo_indptr[b] + i) * token;
      for (int64_t h = 0; h < d->heads; ++h) made->lse.allow(static_cast<size_t>(at + h * head) * sizeof(float), sizeof(float));
    }
  }
}

Strength draft_scores(Draft* d) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  Problem& p = d->made->problem;
  const double d_qk = d->d_qk;
  static const std::vector<double> kFactors = {1.0, 1.0, 0.7, 1.6};
  double scale = random.pick(kFactors) / std::sqrt(d_qk);
  double norm = 0.0;
  for (int32_t i = 0; i < d->d_qk; ++i) {
    const float x = random.normal();
    d->direction.push_back(std::fabs(x) < 0.5F ? (random.one_in(2) ? 0.5F : -0.5F) : x);
    norm += static_cast<double>(d->direction.back()) * static_cast<double>(d->direction.back());
  }
  if (spec.at(kSmScale) == kZeroScale) scale = 0.0;
  if (spec.at(kSmScale) == kNegativeScale) scale = -scale;
  Strength strength;
  if (spec.at(kScores) != kUsualScores) {
    const bool up = spec.at(kScores) == kHugePositive;
    scale = (up ? 1e5 : -1e5) / norm;
    strength = {up ? 1.5F : 0.5F, 1.0F};
  } else if (spec.at(kBoundary) == 1) {
    strength.loud = static_cast<float>(random.uniform(9.0, 16.0) / (scale * norm));
  }
  p.sm_scale = static_cast<float>(scale);
  static const std::vector<float> kCaps = {4.0F, 20.0F, 50.0F};
  p.logits_soft_cap = spec.at(kSoftcap) == 1 ? random.pick(kCaps) : 0.0F;
  return strength;
}

}  // namespace

void draft_contents(Draft* d) {
  const Spec& spec = d->spec();
  Case* made = d->made;
  const Strength strength = draft_scores(d);
  for (int32_t s = 0; s < spec.num_sources(); ++s) place_source(d, s);
  draft_queries(d, strength.loud != 0.0F || strength.all != 0.0F);
  draft_sinks(d);
  draft_out(d);
  draft_lse(d);
  ResolvedProblem resolved;
  made->status = validate(made->problem, &resolved);
  if (!made->status.ok()) return;
  for (int32_t s = 0; s < spec.num_sources(); ++s) fill_source(d, resolved.sources[s], d->entries[static_cast<size_t>(s)], strength);
}

std::unique_ptr<Case> build_case(const Spec& spec, uint64_t seed, int64_t index) {
  auto made = std::make_unique<Case>();
  made->spec = spec;
  made->index = index;
  made->seed = seed;
  Draft draft;
  draft.made = made.get();
  draft.random = Random(mix(seed, 3, static_cast<uint64_t>(index)));
  draft_lengths(&draft);
  draft_tables(&draft);
  draft_edges(&draft);
  draft_contents(&draft);
  return made;
}

std::string Case::describe() const {
  std::string text = "requests=" + std::to_string(problem.requests) + " rows=" + std::to_string(live_rows()) +
                     " heads=" + std::to_string(problem.q.heads) + " d_qk=" + std::to_string(problem.d_qk()) +
                     " d_v=" + std::to_string(problem.d_v());
  const auto add = [&](Group g, int32_t s) {
    if (g == kDQk || g == kDV || g == kHeads || g == kBatch) return;
    text += " " + feature_name(feature_id(g, spec.at(g, s)));
  };
  for (int32_t g = 0; g < kFirstSourceGroup; ++g) {
    if (spec.at(static_cast<Group>(g)) != 0 || g == kQType || g == kOutType) add(static_cast<Group>(g), 0);
  }
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    text += " | kv[" + std::to_string(s) + "]:";
    for (int32_t g = kFirstSourceGroup; g < kNumGroups; ++g) {
      const bool always = g == kKFormat || g == kVFormat || g == kAddressing || g == kRule || g == kRatio;
      if (always || spec.at(static_cast<Group>(g), s) != 0) add(static_cast<Group>(g), s);
    }
  }
  return text;
}

}  // namespace headwater::conformance
