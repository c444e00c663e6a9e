#pragma once
// Errors as values, and the one check for our own bugs.
//
// A user's mistake, a bad file, a dead peer: an error value, which says who, what, where and what
// to do, and the caller decides. A broken invariant of our own: expects() throws broken_invariant,
// which ends the actor that broke it; its supervisor decides. A result<void> that is fine costs one
// null pointer.

#include "troupe/schema/source_location.hpp"

#include <cstdint>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace troupe {

// The numbers are the exit codes of all programs.
enum class error_code : std::uint8_t {
  failed = 1,       // the answer is bad, or the job failed
  usage = 2,        // a flag, a graph, a file or a plan is wrong
  unreachable = 3,  // nobody there
  timed_out = 4,    // no answer, or only a part of it, in time
  denied = 5,       // wrong token, wrong cluster, fenced
  not_found = 6,    // no such object
};

std::string_view to_string(error_code c) noexcept;

class [[nodiscard]] error {
 public:
  error(error_code code, std::string message) : code_(code), message_(std::move(message)) {}

  error_code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  // "message", or "file:line: message" once a user's line is known.
  std::string text() const;

  // The user's line that is to blame. The first one set wins: it is the nearest to the mistake.
  error& at(const source_location& where);
  error& at(std::string_view file, std::uint32_t line);
  // Puts "what: " in front of the message.
  error& while_doing(std::string_view what);

 private:
  error_code code_;
  std::string message_;
  std::string file_;
  std::uint32_t line_ = 0;
};

template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(troupe::error e) : state_(std::in_place_index<1>, std::move(e)) {}

  explicit operator bool() const noexcept { return state_.index() == 0; }
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  troupe::error& error() noexcept { return *std::get_if<1>(&state_); }
  const troupe::error& error() const noexcept { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, troupe::error> state_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(troupe::error e) : error_(std::make_unique<troupe::error>(std::move(e))) {}

  explicit operator bool() const noexcept { return error_ == nullptr; }
  troupe::error& error() noexcept { return *error_; }
  const troupe::error& error() const noexcept { return *error_; }

 private:
  std::unique_ptr<troupe::error> error_;
};

class broken_invariant : public std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_invariant(const char* what, const std::source_location& where);

inline void expects(bool condition, const char* what,
                    const std::source_location& where = std::source_location::current()) {
  if (!condition) [[unlikely]]
    fail_invariant(what, where);
}

}  // namespace troupe
