// Drawings of how a plan deals its work.
#pragma once

#include <string>

#include "headwater/backend.h"

namespace headwater::cli {

// One line a worker: every column is a stretch of time, its letter the request at work there (a-z, then again), upper case where the
// row block is cut, '|' where another item begins, '.' idle. At most `max_workers` lines, the longest and shortest among them.
[[nodiscard]] std::string timeline_text(const Explanation& explanation, int columns, int max_workers);

// The same as a picture, one bar a worker, one rectangle an item with a title for the pointer.
[[nodiscard]] std::string timeline_svg(const Explanation& explanation, const std::string& title);

}  // namespace headwater::cli
