#pragma once
// A JSON text (RFC 8259) into the places that a value of the program has for it, without a tree
// between them. What those places are is said by tables of functions, json_type, which whoever
// knows the types makes (runtime/flow/typed_sources.hpp).
//
// Threading: functions of their arguments. Ownership: places belong to the caller, as does what was
// put into them before an error.
//
// JS-1  The text is one object, and UTF-8. A place that is not optional is filled exactly once: a
//       key that is missing or stands twice is an error. Keys that have no place are passed over,
//       whatever is in them.
// JS-2  Nothing is guessed: a number is no text, 1.0 no whole number, and one that does not fit its
//       place an error. A number of floating point is the nearest one.
// JS-3  Memory is that of the places, which grows with what was read; at most 100 places lie in
//       each other.
//
// Errors are one line: the text's name, what was expected and found, and for which key, or the byte
// (from 1) at which the text is no JSON.

#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

struct json_type;

// A place, and what it takes.
struct json_slot {
  void* at = nullptr;
  const json_type* type = nullptr;
};

// What a place takes: null pointers stand for what it does not. False: the value does not fit.
struct json_type {
  std::string_view expected;  // "a whole number", for errors
  bool (*take_null)(void*) = nullptr;
  bool (*take_bool)(void*, bool) = nullptr;
  bool (*take_signed)(void*, std::int64_t) = nullptr;  // below 0
  bool (*take_unsigned)(void*, std::uint64_t) = nullptr;
  // With a point or an exponent, or beyond 64 bits; also as it stands there.
  bool (*take_floating)(void*, double, std::string_view) = nullptr;
  bool (*take_text)(void*, std::string&) = nullptr;
  // Of a list: emptied; the place of one element more.
  void (*clear)(void*) = nullptr;
  json_slot (*add)(void*) = nullptr;
  // Of an object: its keys, and the place of each.
  std::span<const std::string_view> keys{};
  json_slot (*member)(void*, std::size_t) = nullptr;
  // Of what may be missing: the place within, which is made.
  json_slot (*inner)(void*) = nullptr;
  bool may_miss = false;
};

// `name` is for errors: "a.jsonl: line 3". `into` is an object.
result<void> parse_json(std::string_view text, json_slot into, std::string_view name);

}  // namespace troupe
