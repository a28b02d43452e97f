// Where a C interface begins: nothing may be thrown across it.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "headwater/status.h"

namespace headwater {

// Runs `body`, a callable that returns a Status; its code is the result, its message goes to *message.
template <class Body>
int32_t run_without_throwing(const Body& body, std::string* message) {
  try {
    const Status status = body();
    *message = status.message();
    return static_cast<int32_t>(status.code());
  } catch (const std::bad_alloc&) {
    message->assign("out of memory");
    return static_cast<int32_t>(StatusCode::kBuffer);
  } catch (const std::exception& error) {
    message->assign("internal error: ").append(error.what());
    return static_cast<int32_t>(StatusCode::kInvalid);
  }
}

}  // namespace headwater
