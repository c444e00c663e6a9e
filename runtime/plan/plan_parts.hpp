#pragma once
// What plans, graphs and journals of jobs have in common as bytes (schema/plan.capnp): lines,
// specs, attributes, optimizers, libraries. Their codecs alone include this.
//
// Cap'n Proto checks every pointer against the message; what it cannot know is checked here:
// numbers of enums, references, and that no list claims more elements than the bytes can hold, so
// that memory is taken in proportion to the message.

#include "troupe/runtime/plan/optimizer.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include "schema/plan.capnp.h"

#include <capnp/message.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::plan_parts {

// --- writing

template <class Container>
unsigned list_size(const Container& c) {
  expects(c.size() < (std::size_t{1} << 29U), "a list fits in Cap'n Proto");
  return static_cast<unsigned>(c.size());
}

template <class List, class Container, class Put>
void fill(List list, const Container& from, Put&& put_one) {
  unsigned i = 0;
  for (const auto& x : from) put_one(list[i++], x);
}

void put(wire::TensorSpec::Builder to, const tensor_spec& s);
void put(wire::Attribute::Builder to, const attributes::entry& e);
void put(wire::OptimizerNumbers::Builder to, const optimizer_spec& o);
void put(wire::Schedule::Builder to, const learning_rate_schedule& s);
void put(wire::Library::Builder to, const planned_library& l);

// Numbers the source files of all lines, which it has to be shown before it writes one.
class line_writer {
 public:
  void see(const std::string& file) {
    if (!file.empty()) files_.try_emplace(file, static_cast<std::uint32_t>(files_.size()) + 1);
  }
  void put(wire::Line::Builder to, const std::string& file, std::uint32_t line) const {
    to.setFile(file.empty() ? 0 : files_.at(file));
    to.setLine(line);
  }
  void put(capnp::List<capnp::Text>::Builder to) const {
    for (const auto& [name, number] : files_) to.set(number - 1, name);
  }
  unsigned count() const { return list_size(files_); }

 private:
  std::map<std::string, std::uint32_t> files_;  // 1 + number in the list
};

std::vector<std::byte> to_bytes(capnp::MessageBuilder& message);

// --- reading

// A mistake found while reading leaves through this one exception, as Cap'n Proto's own do;
// read_message() catches both.
struct misread {
  std::string what;
};

// Words that an element of each list takes in the message, at least.
inline constexpr std::uint64_t library_words = 4, small_words = 1;

// Every op has a copy of its file's name, and attributes are inserted in order.
inline constexpr std::size_t file_name_max = 1024, attributes_max = 256;

class part_reader {
 public:
  explicit part_reader(std::uint64_t words) : words_left_(words) {}

 protected:
  void spend(std::uint64_t elements, std::uint64_t words_each);
  void limit(const char* what, std::uint64_t n, std::uint64_t most, std::uint64_t words_each);

  std::string text(capnp::Text::Reader t);
  tensor_spec spec(wire::TensorSpec::Reader s);
  attributes::entry attribute(wire::Attribute::Reader a);
  attributes all_attributes(capnp::List<wire::Attribute>::Reader list);
  planned_library library(wire::Library::Reader r);
  static update_kind update(std::uint8_t n);
  static optimizer_spec optimizer(std::string type, double learning_rate, double momentum,
                                  wire::OptimizerNumbers::Reader n);
  static learning_rate_schedule schedule(wire::Schedule::Reader r);

  void read_files(capnp::List<capnp::Text>::Reader files);
  source_line line(wire::Line::Reader l) const;
  const std::vector<std::string>& files() const noexcept { return files_; }

 private:
  std::uint64_t words_left_;
  std::vector<std::string> files_;
};

// Calls `read` with a message over a copy of the bytes and their number of words, and makes of what
// it throws an error "not WHAT: ...".
result<void> read_message(
    std::span<const std::byte> bytes, std::size_t bytes_max, std::string_view what,
    const std::function<void(capnp::MessageReader&, std::uint64_t words)>& read);

}  // namespace troupe::plan_parts
