// One KV store by itself: formats, widths, strides, scales. Shared by validate and by append / gather.
#pragma once

#include "src/core/check.h"
#include "src/core/resolved.h"

namespace headwater::check {

// Is there a record of this format and width?
[[nodiscard]] Status check_record(Where at, const char* name, Format format, int32_t width);

// Fills k, v, shared, heads, addressing, page_size and num_slots; tables, lengths and rule are not looked at. Nothing is dereferenced.
[[nodiscard]] Status resolve_store(Where at, const Source& source, ResolvedSource* out);

// CPU memory: k_scale / v_scale arrays hold finite values.
[[nodiscard]] Status check_scale_values(Where at, const ResolvedTensor& tensor);

}  // namespace headwater::check
