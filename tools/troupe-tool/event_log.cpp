#include "tools/troupe-tool/event_log.hpp"

#include "tools/troupe-tool/near_names.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <vector>

namespace troupe {

namespace {

constexpr std::int64_t second_ns = 1'000'000'000;
// Between two answers: clocks of nodes and the way of an answer are not exact.
constexpr std::int64_t margin_ns = 5 * second_ns;
// Nobody is waited for longer: who comes back later has what it had kept.
constexpr std::int64_t newest_max_ns = 3600 * second_ns;
constexpr std::size_t kind_width = 18;  // "member unreachable"

// A number of exactly so many digits.
std::optional<int> take_number(std::string_view& text, std::size_t digits) {
  int n = 0;
  if (text.size() < digits) return std::nullopt;
  const auto* end = text.data() + digits;
  const auto [rest, failure] = std::from_chars(text.data(), end, n);
  if (failure != std::errc{} || rest != end || n < 0) return std::nullopt;
  text.remove_prefix(digits);
  return n;
}
bool take(std::string_view& text, std::string_view one_of) {
  if (text.empty() || one_of.find(text[0]) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<std::int64_t> take_date(std::string_view& t) {
  const auto y = take_number(t, 4);
  if (!y || !take(t, "-")) return std::nullopt;
  const auto m = take_number(t, 2);
  if (!m || !take(t, "-")) return std::nullopt;
  const auto d = take_number(t, 2);
  if (!d) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*y),
                                         std::chrono::month(static_cast<unsigned>(*m)),
                                         std::chrono::day(static_cast<unsigned>(*d))};
  if (!date.ok() || *y < 1970 || *y > 2200) return std::nullopt;
  return std::chrono::sys_days(date).time_since_epoch().count();
}

// "21:05", ":07" and ".25" of it may be missing; in nanoseconds.
std::optional<std::int64_t> take_time(std::string_view& t) {
  const auto h = take_number(t, 2);
  if (!h || *h > 23 || !take(t, ":")) return std::nullopt;
  const auto m = take_number(t, 2);
  if (!m || *m > 59) return std::nullopt;
  auto ns = (std::int64_t{*h} * 3600 + *m * 60) * second_ns;
  if (!take(t, ":")) return ns;
  const auto s = take_number(t, 2);
  if (!s || *s > 60) return std::nullopt;
  ns += *s * second_ns;
  if (!take(t, ".,")) return ns;
  if (t.empty() || t[0] < '0' || t[0] > '9') return std::nullopt;
  for (auto unit = second_ns / 10; !t.empty() && t[0] >= '0' && t[0] <= '9'; unit /= 10) {
    ns += (t[0] - '0') * unit;
    t.remove_prefix(1);
  }
  return ns;
}

std::optional<std::int64_t> take_zone(std::string_view& t) {
  if (t.empty() || take(t, "Zz")) return 0;
  const auto sign = t[0] == '-' ? -1 : 1;
  if (!take(t, "+-")) return std::nullopt;
  const auto h = take_number(t, 2);
  take(t, ":");
  const auto m = take_number(t, 2);
  if (!h || !m || *h > 23 || *m > 59) return std::nullopt;
  return sign * (std::int64_t{*h} * 3600 + *m * 60) * second_ns;
}

std::optional<std::int64_t> point_in_time(std::string_view t) {
  const auto days = take_date(t);
  if (!days) return std::nullopt;
  auto ns = *days * 24 * 3600 * second_ns;
  if (t.empty()) return ns;
  if (!take(t, "Tt ")) return std::nullopt;
  const auto time = take_time(t);
  const auto zone = time ? take_zone(t) : std::nullopt;
  if (!zone || !t.empty()) return std::nullopt;
  return ns + *time - *zone;
}

std::int64_t time_of(const event& e, std::int64_t now_unix_ns) {
  return now_unix_ns - static_cast<std::int64_t>(std::llround(e.since_seconds * 1e9));
}

std::string padded(std::string_view text, std::size_t width) {
  const auto shown = text.empty() ? std::string("-") : printable(text);
  const auto n = characters(shown);
  return shown + std::string(width > n ? width - n : 0, ' ');
}

void widen(std::size_t& width, std::string_view text) { width = std::max(width, characters(text)); }

std::string line_of(const event& e, std::int64_t now_unix_ns, std::size_t node_width,
                    std::size_t job_width) {
  return fmt::format("{}  {:7}  {}  {}  {}  {}\n", time_text(time_of(e, now_unix_ns)),
                     to_string(e.level), padded(e.node, node_width),
                     padded(to_string(e.kind), kind_width), padded(e.job, job_width),
                     printable(e.text));
}

// As in a list, with the time in front.
std::string json_of(const event& e, std::int64_t now_unix_ns) {
  auto text = to_json(std::span<const event>(&e, 1));
  text = text.substr(1, text.size() - 2);
  return fmt::format("{{\"time\":\"{}\",{}\n", time_text(time_of(e, now_unix_ns)), text.substr(1));
}

bool is_of_job(const event& e, const std::string& job) { return e.job == job || e.job_id == job; }
bool is_of_node(const event& e, const std::string& node) {
  return e.node == node || e.node_id == node;
}

// Whose log: a node's, else a job's.
struct subject {
  std::string node, job;
};
// What events are chosen by: it is listed, or an event is of it.
result<void> is_known(std::string_view flag, const std::string& name, const cluster_snapshot& s,
                      const auto& all, bool (*is_of)(const event&, const std::string&)) {
  if (name.empty()) return {};
  std::vector<std::string> names;
  for (const auto& x : all) {
    if (x.name == name || x.id == name) return {};
    names.push_back(x.name);
  }
  for (const auto& e : s.events)
    if (is_of(e, name)) return {};
  return error(error_code::not_found,
               fmt::format("events: there is no {0} '{1}' in cluster {2}{3}, and no event of it; "
                           "troupe list {0}s shows all",
                           flag, shown(name), s.cluster, did_you_mean(name, names)));
}
result<void> are_known(const log_wishes& of, const cluster_snapshot& s) {
  if (auto ok = is_known("node", of.node, s, s.nodes, is_of_node); !ok) return ok;
  return is_known("job", of.job, s, s.jobs, is_of_job);
}

result<subject> subject_of(const command& c, const cluster_snapshot& s) {
  if (c.action != verb::logs) return subject{c.log.node, c.log.job};
  std::vector<std::string> names;
  for (const auto& n : s.nodes) {
    if (n.name == c.id || n.id == c.id) return subject{c.id, {}};
    names.push_back(n.name);
  }
  for (const auto& j : s.jobs) {
    if (j.name == c.id || j.id == c.id) return subject{{}, c.id};
    names.push_back(j.name);
  }
  for (const auto& e : s.lines)  // of a job that is not listed any more
    if (is_of_job(e, c.id)) return subject{{}, c.id};
  return error(error_code::not_found,
               fmt::format("logs: there is no node and no job '{}' in cluster {}{}; troupe list "
                           "nodes and troupe list jobs show all",
                           c.id, s.cluster, did_you_mean(c.id, names)));
}

class log_filter {
 public:
  log_filter(const command& c, subject of, std::int64_t now_unix_ns)
      : level_(c.log.level), of_(std::move(of)) {
    if (!c.log.since.empty())
      if (const auto since = parse_since(c.log.since, now_unix_ns)) since_ns_ = *since;
  }
  bool takes(const event& e, std::int64_t at_ns) const {
    return e.level >= level_ && at_ns >= since_ns_ &&
           (of_.node.empty() || is_of_node(e, of_.node)) &&
           (of_.job.empty() || is_of_job(e, of_.job));
  }

 private:
  event_level level_;
  subject of_;
  std::int64_t since_ns_ = 0;
};

const std::vector<event>& wanted(const command& c, const cluster_snapshot& s) {
  return c.action == verb::logs ? s.lines : s.events;
}

}  // namespace

result<std::int64_t> parse_since(std::string_view text, std::int64_t now_unix_ns) {
  if (const auto then = point_in_time(text)) return *then;
  const auto span = parse_duration(text);
  if (!span)
    return error(error_code::usage, fmt::format("'{}' is neither a duration (10m, 2h) nor a time "
                                                "(2026-11-28T21:05:07Z)",
                                                shown(text)));
  return now_unix_ns - *span;
}

std::int64_t unix_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string time_text(std::int64_t unix_ns) {
  using namespace std::chrono;
  const sys_time<milliseconds> at(floor<milliseconds>(nanoseconds(unix_ns)));
  const auto day = floor<days>(at);
  const year_month_day date(day);
  const hh_mm_ss time(at - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", int(date.year()),
                     unsigned(date.month()), unsigned(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

outcome answer_log(const command& c, const cluster_snapshot& s, std::int64_t now_unix_ns) {
  auto of = subject_of(c, s);
  if (!of) return answer_error(of.error());
  // What is followed may come later.
  if (c.action != verb::logs)
    if (auto ok = are_known(c.log, s); !ok) return answer_error(ok.error());
  const log_filter filter(c, std::move(*of), now_unix_ns);
  std::vector<event> taken;
  std::size_t node_width = 1, job_width = 1;
  for (const auto& e : wanted(c, s)) {
    if (!filter.takes(e, time_of(e, now_unix_ns))) continue;
    widen(node_width, e.node), widen(job_width, e.job);
    taken.push_back(e);
  }
  outcome o;
  if (c.json)
    o.out = to_json(std::span<const event>(taken)) + "\n";
  else
    for (const auto& e : taken) o.out += line_of(e, now_unix_ns, node_width, job_width);
  return o;
}

bool log_follower::is_new(const event& e, std::int64_t at_ns) {
  if (e.number == 0) {
    const auto [at, is_first] = of_older_.try_emplace(e.node + '\n' + e.text, at_ns);
    const bool is_same = !is_first && std::abs(at_ns - at->second) < 2 * second_ns;
    at->second = at_ns;
    return !is_same;
  }
  const auto at = last_.find(e.node_id);
  if (at != last_.end() && e.number <= at->second) return false;
  return command_.action == verb::logs || happenings_.is_first(e, double(at_ns) * 1e-9);
}

outcome log_follower::add(const cluster_snapshot& s, std::int64_t now_unix_ns) {
  const bool is_first_answer = answered_.empty();
  auto of = subject_of(command_, s);
  // What was there at first may be gone for a while.
  if (!of && is_first_answer) return answer_error(of.error());
  const log_filter filter(command_, of ? std::move(*of) : subject{command_.id, {}}, now_unix_ns);
  outcome o;
  for (const auto& r : s.ranges) {
    if (r.is_of_lines != (command_.action == verb::logs)) continue;
    const auto at = last_.find(r.node_id);
    if (at != last_.end() && r.first > at->second + 1)  // EL-2
      o.err += fmt::format("troupe: {} {} of node {} were dropped there before they were seen\n",
                           r.first - at->second - 1, r.is_of_lines ? "lines" : "events",
                           printable(r.node));
  }
  auto seen = last_;
  for (const auto& e : wanted(command_, s)) {
    const auto at = time_of(e, now_unix_ns);
    // A node that was held dead goes on with a new id, and has events of the life before.
    if (e.number != 0) seen[e.node_id] = std::max(seen[e.node_id], e.number);
    if (!is_new(e, at) || !filter.takes(e, at)) continue;
    widen(node_width_, e.node), widen(job_width_, e.job);
    o.out +=
        command_.json ? json_of(e, now_unix_ns) : line_of(e, now_unix_ns, node_width_, job_width_);
  }
  last_ = std::move(seen);
  for (const auto& r : s.ranges)
    if (r.is_of_lines == (command_.action == verb::logs))
      last_[r.node_id] = std::max(last_[r.node_id], r.last);
  std::set<std::string> silent;
  for (const auto& n : s.silent) {
    silent.insert(n.name);
    if (!silent_.contains(n.name))
      o.err +=
          fmt::format("troupe: node {} does not answer{}{}: what it knows comes when it does\n",
                      printable(n.name), n.reason.empty() ? "" : ": ", printable(n.reason));
  }
  silent_ = std::move(silent);
  for (const auto& n : s.nodes)
    if (n.state == node_state::dead || n.state == node_state::left)
      answered_.erase(n.id);
    else if (!silent_.contains(n.name))
      answered_[n.id] = now_unix_ns;
  lacks_answers_ = !silent_.empty();
  for (const auto& n : s.nodes)
    if (n.state != node_state::dead && n.state != node_state::left && !answered_.contains(n.id))
      lacks_answers_ = true;
  const auto is_old = [&](const auto& x) { return now_unix_ns - x.second > newest_max_ns; };
  std::erase_if(answered_, is_old);  // forgotten by all meanwhile
  std::erase_if(of_older_, is_old);
  happenings_.forget_before(double(now_unix_ns - 2 * newest_max_ns) * 1e-9);
  return o;
}

std::int64_t log_follower::newer_than_ns(std::int64_t now_unix_ns) const {
  if (lacks_answers_ || answered_.empty()) return 0;
  auto oldest = now_unix_ns;
  for (const auto& [node, at] : answered_) oldest = std::min(oldest, at);
  return std::min(now_unix_ns - oldest, newest_max_ns) + margin_ns;
}

}  // namespace troupe
