#pragma once
// What --join says: where a member is, or a name that members are looked up by.
//
// Threading: plain functions.

#include "troupe/runtime/text/address.hpp"
#include "troupe/schema/error.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// An address, or the name in "dns:NAME:PORT".
struct join_place {
  address at;
  bool is_dns = false;
};
// usage errors name the text.
result<join_place> parse_join(std::string_view text);
// Of those that are no names; the others' names are put into `names`.
result<std::vector<std::string>> split_joins(std::span<const std::string> joins,
                                             std::vector<address>& names);

}  // namespace troupe
