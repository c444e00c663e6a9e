#include "troupe/runtime/cluster/membership.hpp"
#include "troupe/schema/error.hpp"

#include <tuple>
#include <utility>

namespace troupe {

std::string member_name(node_id id) {
  // splitmix64: neighbouring ids (tests, clocks) get names that differ at a glance.
  auto x = raw(id) + 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  x ^= x >> 31;
  static constexpr std::string_view letters = "abcdefghjkmnpqrstuvwxyz23456789";  // 31
  std::string out = "n";
  for (int i = 0; i < 5; ++i, x /= letters.size()) out += letters[x % letters.size()];
  return out;
}

namespace {

// dead and left are final, and left says more: MB-1.
int finality(member_state s) noexcept {
  return s == member_state::left ? 2 : s == member_state::dead ? 1 : 0;
}

// What only its holder thinks.
member_info without_opinion(member_info m) {
  if (is_living(m)) {
    m.state = member_state::alive;
    m.reason.clear();
  }
  return m;
}

}  // namespace

bool is_living(const member_info& m) noexcept { return finality(m.state) == 0; }

member_info united(const member_info& first, const member_info& second) {
  expects(first.id == second.id, "only records of one life are united");
  const auto a = without_opinion(first);
  const auto b = without_opinion(second);
  const auto rank = [](const member_info& m) { return std::pair(finality(m.state), m.revision); };
  // Equal ranks differ in the reason of a death at most, if everybody is honest; the order of the
  // texts is as good as any.
  const auto rest = [](const member_info& m) {
    return std::tie(m.reason, m.name, m.address, m.host, m.job, m.start_time_ns, m.pid, m.kind,
                    m.streams, m.incarnation, m.jobs, m.libraries, m.devices, m.labels, m.lease_ns);
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b) ? b : a;
  return rest(b) < rest(a) ? b : a;
}

std::string_view to_string(membership_action_kind k) noexcept {
  static constexpr std::string_view names[] = {
      "connect",    "close",         "send_view", "send_heartbeat", "send_fence",
      "send_leave", "check_process", "rejoin",    "joined",         "unreachable",
      "reachable",  "died",          "left",      "conflict"};
  return names[static_cast<std::size_t>(k)];
}

}  // namespace troupe
