// Errors as values. Nothing in the library throws, prints, aborts or exits.
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace headwater {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalid = 1,      // the problem is wrong: no implementation could answer it
  kUnsupported = 2,  // the problem is right, but no kernel of this build and machine takes it
  kBuffer = 3,       // a schedule or scratch buffer is missing, too small or misaligned
  kStale = 4,        // Plan::check: a run met lengths other than the scheduled ones
  kDevice = 5,       // the device runtime reported an error
};

// Outcome of a call. The message names the field, its value and the rule it breaks,
// e.g. "kv[1].page_size = 0: must be at least 1".
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

[[nodiscard]] inline Status invalid(std::string message) { return {StatusCode::kInvalid, std::move(message)}; }
[[nodiscard]] inline Status unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}                                        // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) { assert(!this->status().ok()); }  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(state_); }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<T>(state_); }
  [[nodiscard]] T& value() & { return std::get<T>(state_); }
  [[nodiscard]] T&& value() && { return std::get<T>(std::move(state_)); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }
  const T& operator*() const& { return value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace headwater
