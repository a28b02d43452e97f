// Software prefetch of the next tile, spread over the arithmetic of the current one. Needed wherever a record is not followed by the next
// one of its head: in [token][head][d] caches the stride between a head's rows runs past the hardware prefetchers' pages, and every row
// would cost a DRAM latency. Compiled per ISA.
#pragma once

#include "src/cpu/row_block.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

class TilePrefetcher {
 public:
  // `next` may be null: nothing to fetch. Its lines are dealt to `steps` calls of step.
  TilePrefetcher(const Tile* next, int steps) {
    if (next == nullptr) return;
    parts_[0] = &next->k;
    if (!next->shared) parts_[1] = &next->v;
    rows_ = next->count;
    int lines = 0;
    for (const TileRecords* part : parts_) {
      if (part != nullptr) lines += rows_ * (part->layout->row_bytes + 63) / 64 + (has_scales(*part) ? rows_ : 0);
    }
    per_step_ = lines / (steps > 0 ? steps : 1) + 1;
    enter_part(0);
  }

  void step() {
    for (int i = 0; i < per_step_ && at_ != nullptr; ++i) {
      __builtin_prefetch(at_, 0, 2);  // to L2: a tile is larger than L1
      at_ += 64;
      if (at_ < end_) continue;
      if (scales_ != nullptr) __builtin_prefetch(scales_, 0, 2);
      ++row_;
      enter_row();
    }
  }

 private:
  static bool has_scales(const TileRecords& records) { return records.layout->tail_bytes > 0 || records.layout->apart_bytes > 0; }

  void enter_row() {
    if (row_ == rows_) return enter_part(part_ + 1);
    const TileRecords& records = *parts_[part_];
    const std::byte* const row = records.row[row_];
    at_ = row - reinterpret_cast<uintptr_t>(row) % 64;
    end_ = row + records.layout->row_bytes;
    scales_ = has_scales(records) ? records.scales[row_] : nullptr;
  }

  void enter_part(int part) {
    part_ = part;
    row_ = 0;
    at_ = nullptr;
    if (part < 2 && parts_[part] != nullptr) enter_row();
  }

  const TileRecords* parts_[2] = {nullptr, nullptr};
  int part_ = 0;
  int rows_ = 0;
  int row_ = 0;
  int per_step_ = 0;
  const std::byte* at_ = nullptr;  // next line; null at the end
  const std::byte* end_ = nullptr;
  const std::byte* scales_ = nullptr;
};

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
