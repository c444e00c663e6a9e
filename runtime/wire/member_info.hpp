#pragma once
// What members of a cluster know of each other: a member's record, as it is passed on.
//
// Threading: values.

#include "troupe/runtime/wire/node_devices.hpp"
#include "troupe/schema/ids.hpp"
#include "troupe/schema/library_id.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

enum class member_kind : std::uint8_t { node = 0, client = 1, tool = 2 };
enum class member_state : std::uint8_t { alive = 0, unreachable = 1, dead = 2, left = 3 };
std::string_view to_string(member_kind k) noexcept;
std::string_view to_string(member_state s) noexcept;

inline constexpr std::size_t labels_max = 32, label_bytes_max = 64;
inline constexpr std::int64_t lease_min_ns = 1'000'000'000, lease_max_ns = 3'600'000'000'000;

struct member_info {
  node_id id{};
  std::uint64_t start_time_ns = 0;
  std::string name, address, host;
  std::uint32_t pid = 0;
  member_kind kind = member_kind::node;
  std::string job;
  std::uint32_t streams = 1;
  std::uint32_t incarnation = 1;
  member_state state = member_state::alive;
  std::string reason;
  std::uint32_t jobs = 0;               // parts of jobs that it runs
  std::uint32_t revision = 0;           // of its own record
  std::vector<library_id> libraries{};  // of users' ops, loaded there
  std::vector<device_group> devices{};  // gpu:0, gpu:1, ...
  std::vector<std::string> labels{};    // "rack=3": wishes for devices may name them
  // Others hold it dead after so long without a sign of life; 0: as membership_options has it.
  std::int64_t lease_ns = 0;

  friend bool operator==(const member_info&, const member_info&) = default;
};

}  // namespace troupe
