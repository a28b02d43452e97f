#include "src/plan/cost.h"

#include <algorithm>

#include "headwater/format.h"

namespace headwater::plan {

namespace {

double record_bytes(Format format, int32_t width) {
  double bytes = static_cast<double>(record_row_bytes(format, width) + record_scale_bytes(format, width));
  if (format_info(format).planar) bytes = static_cast<double>(record_page_bytes(format, width, 64)) / 64.0;
  return bytes;
}

// Microseconds as units, at least `least`. The ceiling keeps n * cost far from 2^63 for 2^31 tiles.
int32_t to_units(double us, double unit_us, int32_t least) {
  const double units = std::min(us / unit_us + 0.5, double{1 << 24});
  return std::max(least, static_cast<int32_t>(units));
}

}  // namespace

double entry_bytes(const Bounds& bounds, const SourceBounds& source) {
  return record_bytes(source.k_format, bounds.d_qk) + (source.shared ? 0.0 : record_bytes(source.v_format, bounds.d_v));
}

void set_costs(const Bounds& bounds, const KernelTraits& traits, PlanShape* shape) {
  // A tile of the mean source: which source a tile belongs to is known only once lengths are.
  double bytes = 0.0;
  for (const SourceBounds& source : bounds.sources) bytes += entry_bytes(bounds, source);
  bytes *= shape->tile_entries / static_cast<double>(std::max<size_t>(1, bounds.sources.size()));
  const double heads = shape->head_block;
  const double flops = 2.0 * heads * shape->tile_entries * (bounds.d_qk + bounds.d_v);
  const double read_us = bytes / traits.bytes_per_us;
  const double token_us = flops / traits.flops_per_us;
  const double unit_us = std::max({read_us, token_us, 1e-6}) / kUnitsPerTile;

  const double partial = heads * (bounds.d_v + 2.0) * sizeof(float);
  shape->tile_cost = to_units(read_us, unit_us, 1);
  shape->tile_token_cost = to_units(token_us, unit_us, 1);
  shape->block_cost = to_units(traits.fragment_us, unit_us, 1);
  shape->partial_cost = to_units(partial / traits.merge_bytes_per_us, unit_us, 1);
}

}  // namespace headwater::plan
