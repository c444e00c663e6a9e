// Snapshots as JSON: a writer and a reader of the fields.

#include "troupe/runtime/insight/snapshot_fields.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>
#include <type_traits>

namespace troupe {

namespace {

using json = nlohmann::ordered_json;
constexpr int depth_max = 8;  // an answer needs five: answer, actors, actor, ports, port

// --- writing -------------------------------------------------------------------------------------

struct writer {
  json out = json::object();

  void operator()(const char* key, const auto& value) { out[key] = write(value); }

  json write(const std::string& s) const { return s; }
  json write(bool b) const { return b; }
  json write(std::uint64_t n) const { return n; }
  json write(double d) const { return three_decimals(std::isfinite(d) ? d : 0.0); }
  template <class E>
    requires std::is_enum_v<E>
  json write(E e) const {
    return std::string(to_string(e));
  }
  template <class T>
    requires std::is_class_v<T>
  json write(const T& value) const {
    writer inner;
    fields(inner, value);
    return std::move(inner.out);
  }
  template <class T>
  json write(const std::vector<T>& list) const {
    return write(std::span<const T>(list));
  }
  template <class T>
  json write(std::span<const T> list) const {
    json items = json::array();
    for (const auto& item : list) items.push_back(write(item));
    return items;
  }
};

// Bytes that are no UTF-8 become U+FFFD instead of an exception.
std::string dump(const json& j) { return json_line(j); }

std::string write_text(const auto& value) { return dump(writer().write(value)); }

// --- reading -------------------------------------------------------------------------------------

// Control characters: C0, DEL, and C1 as it stands in UTF-8 (C2 80 .. C2 9F).
void replace_controls(std::string& s) {
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    const auto next = i + 1 < s.size() ? static_cast<unsigned char>(s[i + 1]) : 0;
    if (c < 0x20 || c == 0x7f) s[i] = ' ';
    if (c == 0xc2 && next >= 0x80 && next < 0xa0) s.replace(i, 2, " ");
  }
}

struct reader {
  const json& in;
  std::string path;
  std::optional<error>& failure;

  template <class T>
  void operator()(const char* key, T& value) {
    if (failure) return;
    const auto at = in.find(key);
    if (at != in.end())
      read(*at, value, path.empty() ? std::string(key) : fmt::format("{}.{}", path, key));
  }

  void fail(const json& got, const std::string& where, std::string_view expected) {
    failure =
        error(error_code::failed, fmt::format("a bad answer: {} should be {}, and is {} {}", where,
                                              expected, got.type_name(), dump(got).substr(0, 40)));
  }

  void read(const json& j, std::string& s, const std::string& where) {
    if (!j.is_string()) return fail(j, where, "a string");
    s = j.get_ref<const std::string&>();
    replace_controls(s);
  }
  void read(const json& j, bool& b, const std::string& where) {
    if (!j.is_boolean()) return fail(j, where, "true or false");
    b = j.get<bool>();
  }
  void read(const json& j, std::uint64_t& n, const std::string& where) {
    if (!j.is_number_unsigned()) return fail(j, where, "a whole number >= 0");
    n = j.get<std::uint64_t>();
  }
  void read(const json& j, double& d, const std::string& where) {
    if (!j.is_number() || !(j.get<double>() >= 0) || !std::isfinite(j.get<double>()))
      return fail(j, where, "a finite number >= 0");
    d = j.get<double>();
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(const json& j, E& e, const std::string& where) {
    if (j.is_string())
      for (std::uint8_t i = 0; !to_string(static_cast<E>(i)).empty(); ++i)
        if (to_string(static_cast<E>(i)) == j.get_ref<const std::string&>()) {
          e = static_cast<E>(i);
          return;
        }
    // Later versions have more kinds of events.
    constexpr bool may_be_unknown = std::same_as<E, event_kind> || std::same_as<E, event_level>;
    if (may_be_unknown && j.is_string()) return;
    fail(j, where, may_be_unknown ? "a string" : "a known state");
  }
  template <class T>
  void read(const json& j, std::vector<T>& list, const std::string& where) {
    if (!j.is_array()) return fail(j, where, "a list");
    for (std::size_t i = 0; i < j.size() && !failure; ++i)
      read(j[i], list.emplace_back(), fmt::format("{}[{}]", where, i));
  }
  template <class T>
    requires std::is_class_v<T>
  void read(const json& j, T& value, const std::string& where) {
    if (!j.is_object()) return fail(j, where.empty() ? "it" : where, "an object");
    reader inner{j, where, failure};
    fields(inner, value);
  }
};

// Counted before a tree is built from hostile text: nesting and values outside strings.
bool is_within_limits(std::string_view text) {
  if (text.size() > answer_bytes_max) return false;
  std::size_t values = 0;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') ++depth, ++values;
    if (c == ']' || c == '}') --depth;
    if (c == ',') ++values;
    if (depth > depth_max || values > answer_values_max) return false;
  }
  return true;
}

template <class T>
result<T> parse(std::string_view text) {
  if (!is_within_limits(text))
    return error(error_code::failed,
                 fmt::format("a bad answer: more than {} bytes, {} values or {} levels of JSON",
                             answer_bytes_max, answer_values_max, depth_max));
  const json tree = json::parse(text, nullptr, false);
  if (tree.is_discarded())
    return error(error_code::failed,
                 fmt::format("a bad answer: {} bytes that are no JSON", text.size()));
  T value;
  std::optional<error> failure;
  reader{tree, {}, failure}.read(tree, value, {});
  if (failure) return *failure;
  return value;
}

}  // namespace

double three_decimals(double x) noexcept {
  constexpr double has_no_more = 1e12;  // beyond, the decimals are noise
  return std::abs(x) < has_no_more ? std::round(x * 1000) / 1000 : x;
}

// SN-4: the parts other than actors are few; a sixteenth of the limits is theirs.
std::string to_json(const node_answer& a) {
  constexpr std::size_t bytes_max = answer_bytes_max / 16 * 15,
                        values_max = answer_values_max / 16 * 15;
  std::string actors;
  std::size_t values = 0, count = 0;
  for (const auto& actor : a.actors) {
    values += 20 + 10 * actor.ports.size();
    auto text = write_text(actor);
    if (values > values_max || actors.size() + text.size() + 1 > bytes_max) break;
    if (count++ > 0) actors += ',';
    actors += text;
  }
  auto rest = node_answer{a.cluster, a.self,   a.peers, {},
                          a.jobs,    a.events, a.lines, a.actors_left_out + a.actors.size() - count,
                          a.said};
  auto text = write_text(rest);
  constexpr std::string_view empty_list = "\"actors\":[]";
  // The last one: before it stand texts, whose quotation marks are escaped, and after it no other
  // list of actors.
  text.insert(text.rfind(empty_list) + empty_list.size() - 1, actors);
  return text;
}

std::string to_json(const cluster_snapshot& c) { return write_text(c); }
std::string to_json(const node_snapshot& n) { return write_text(n); }
std::string to_json(const actor_snapshot& a) { return write_text(a); }
std::string to_json(const job_snapshot& j) { return write_text(j); }
std::string to_json(std::span<const node_snapshot> nodes) { return write_text(nodes); }
std::string to_json(std::span<const actor_snapshot> actors) { return write_text(actors); }
std::string to_json(std::span<const job_snapshot> jobs) { return write_text(jobs); }
std::string to_json(std::span<const event> events) { return write_text(events); }

result<node_answer> parse_node_answer(std::string_view text) { return parse<node_answer>(text); }
result<cluster_snapshot> parse_cluster_snapshot(std::string_view text) {
  return parse<cluster_snapshot>(text);
}

}  // namespace troupe
