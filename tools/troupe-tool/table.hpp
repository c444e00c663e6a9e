#pragma once
// Aligned columns of text that fit a width.
//
// TB-1  Lines are at most `width` columns wide (0: no limit), unless the columns that are never
//       dropped do not fit even at their least width.
// TB-2  Nothing is cut silently: a shortened cell shows "..", dropped columns are named.

#include "troupe/runtime/text/printable.hpp"  // characters(), shorten()

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct column {
  std::string title;
  bool is_number = false;   // right-aligned, never shortened
  std::size_t least = 0;    // a text may be shortened down to this many characters (0: not at all)
  unsigned drop_order = 0;  // the highest goes first where the width does not suffice (0: stays)
  // Others are dropped before a text is shortened below this (0: below `least`)
  std::size_t wanted = 0;
};

struct drawn_table {
  std::string text;                  // lines, each ended
  std::vector<std::string> dropped;  // titles
};

class table {
 public:
  explicit table(std::vector<column> columns) : columns_(std::move(columns)) {}
  // One cell per column.
  void add(std::vector<std::string> row);
  bool is_empty() const noexcept { return rows_.empty(); }
  drawn_table draw(std::size_t width) const;

 private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace troupe
