#pragma once
// What moves along an edge of a topology: a value, and where it came from.
//
// IT-1  What a stage makes of an item has that one's origin, unless the stage says another; so an
//       error names what was read, however many stages later.

#include "troupe/runtime/flow/any_value.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

// Items, and what goes along a lane of replicas between them (recovered_replicas.hpp).
enum class item_kind : std::uint8_t {
  item,
  load,  // to a replica: its state from now on
  cut,   // to a replica: tell your state; from it: this is it
  end,   // to a replica: the stream is over; from it: what it makes at its end
};

struct item_origin {
  std::uint64_t number = 0;  // of its source's items: 0, 1, ...
  std::int64_t born_ns = 0;  // when the source made it; 0: not noted
  std::uint32_t source = 0;  // the stage that made it
  // Of replicas: which of the dealt items it was made of, and whether it is the last one of that.
  std::uint32_t ticket = 0;
  bool ends_ticket = false;
  bool is_again = false;  // it was dealt before, to a replica that is lost
  item_kind kind = item_kind::item;
  std::uint32_t lane = 0;  // of one that is dealt again: where it goes
  // What its source calls it, such as the path of a file; null: nothing.
  std::shared_ptr<const std::string> label;
};

struct flow_item {
  any_value value;  // empty: nothing came of that ticket
  item_origin origin;
  std::size_t bytes = 0;  // counted against its edge
};

// An item that a stage could not work on, and was told to leave out.
struct dead_letter {
  std::string stage;   // which one
  std::string source;  // where the item came from
  std::uint64_t number = 0;
  std::string label;  // what its source calls it
  std::string reason;
  static constexpr auto fields =
      troupe::fields<&dead_letter::stage, &dead_letter::source, &dead_letter::number,
                     &dead_letter::label, &dead_letter::reason>("stage", "source", "number",
                                                                "label", "reason");
};

}  // namespace troupe
