#pragma once
// How long ops take, as runs before have measured them: what the planner knows of the ops of users
// and of readers, whose cost no shape tells.
//
// As text it is a line for each op, "NANOSECONDS RUNS KEY"; a line that is none of that is left
// out, and without the text ops are guessed anew.
//
// OT-1  Whatever bytes are parsed, at most entries_max entries come of them, each with a time that
//       is finite and not negative.
//
// Threading: a value.

#include "troupe/runtime/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

class op_times {
 public:
  static constexpr std::size_t entries_max = 4096;

  // What two runs of one op share: its types and name, and the specs of what it takes and makes.
  static std::string key_of(std::span<const planned_op> ops, std::span<const tensor_spec> inputs,
                            std::span<const tensor_spec> outputs);

  // `runs` of the op took total_ns. Later ones count more than earlier ones.
  void add(const std::string& key, std::uint64_t runs, double total_ns);
  std::optional<double> mean_ns(const std::string& key) const;
  bool empty() const noexcept { return entries_.empty(); }

  std::string text() const;
  static op_times parse(std::string_view text);

 private:
  struct entry {
    double mean_ns = 0;
    std::uint64_t runs = 0;
  };
  std::map<std::string, entry, std::less<>> entries_;
};

}  // namespace troupe
