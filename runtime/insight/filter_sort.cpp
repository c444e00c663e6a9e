#include "troupe/runtime/insight/filter_sort.hpp"

#include "troupe/runtime/insight/snapshot_fields.hpp"
#include "troupe/runtime/text/byte_size.hpp"
#include "troupe/runtime/text/duration.hpp"
#include "troupe/runtime/text/near_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

namespace troupe {

namespace {

// A field as it is compared: texts in small letters.
struct field_value {
  std::vector<std::string> texts;
  double number = 0;
  bool is_number = false;
};

std::string in_small(std::string_view text) {
  std::string out(text);
  for (auto& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

field_value value_of(const std::string& s) { return {{in_small(s)}}; }
field_value value_of(std::uint64_t n) { return {{}, double(n), true}; }
field_value value_of(double d) { return {{}, d, true}; }
template <class E>
  requires std::is_enum_v<E>
field_value value_of(E e) {
  return {{in_small(to_string(e))}};
}
field_value value_of(const std::vector<std::string>& list) {
  field_value v;
  for (const auto& s : list) v.texts.push_back(in_small(s));
  return v;
}
field_value value_of(const std::vector<device_snapshot>& list) {
  field_value v;
  for (const auto& d : list) v.texts.push_back(in_small(d.hardware));
  return v;
}
field_value value_of(const std::vector<port_snapshot>& list) {
  return {{}, double(list.size()), true};
}

struct picker {
  std::string_view wanted;
  std::optional<field_value> found{};

  void operator()(std::string_view name, const auto& value) {
    if (name == wanted) found = value_of(value);
  }
};

struct namer {
  std::vector<std::string> names{};
  void operator()(const char* name, const auto&) { names.emplace_back(name); }
};

enum class test : std::uint8_t { equal, unequal, has, has_not, less, at_most, more, at_least };

struct condition {
  std::string key, text;
  test how = test::equal;
  std::optional<double> number;
};

// Of a key: seconds may be written as a duration, bytes as a size.
std::optional<double> number_in(std::string_view key, std::string_view text) {
  double number = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  if (failure == std::errc{} && rest == end)
    return std::isfinite(number) ? std::optional(number) : std::nullopt;
  if (key.ends_with("_seconds"))
    if (const auto span = parse_duration(text)) return double(*span) * 1e-9;
  if (key.find("bytes") != std::string_view::npos)
    if (const auto size = parse_byte_size(text)) return double(*size);
  return std::nullopt;
}

result<condition> parse_condition(std::string_view text) {
  constexpr std::pair<std::string_view, test> tests[] = {
      {"!=", test::unequal},  {"!~", test::has_not}, {"<=", test::at_most},
      {">=", test::at_least}, {"==", test::equal},   {"=", test::equal},
      {"~", test::has},       {"<", test::less},     {">", test::more},
  };
  const auto at = text.find_first_of("=!~<>");
  for (const auto& [sign, how] : tests)
    if (at != 0 && at != std::string_view::npos && text.substr(at).starts_with(sign)) {
      const auto value = text.substr(at + sign.size());
      return condition{std::string(text.substr(0, at)), in_small(value), how,
                       number_in(text.substr(0, at), value)};
    }
  return error(error_code::usage,
               fmt::format("--filter: '{}' is no condition; write KEY=VALUE, or one of != ~ !~ < "
                           "<= > >= instead of =",
                           text));
}

template <class T>
result<void> check_key(std::string_view flag, const std::string& key) {
  namer n;
  const T example{};
  fields(n, example);
  if (std::ranges::find(n.names, key) != n.names.end()) return {};
  const std::vector<std::string_view> texts(n.names.begin(), n.names.end());
  return error(error_code::usage, fmt::format("{}: there is no key '{}'{}; there are {}", flag, key,
                                              near_names(key, texts), fmt::join(n.names, ", ")));
}

bool holds(test how, int order) {
  switch (how) {
    case test::less: return order < 0;
    case test::at_most: return order <= 0;
    case test::more: return order > 0;
    case test::at_least: return order >= 0;
    case test::unequal: return order != 0;
    default: return order == 0;
  }
}

int order_of(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }
int order_of(std::string_view a, std::string_view b) {
  return a == b ? 0 : natural_less(a, b) ? -1 : 1;
}

bool holds(const condition& c, const field_value& v) {
  if (v.is_number) return c.number && holds(c.how, order_of(v.number, *c.number));
  const auto is_so = [&](test how) {
    return std::ranges::any_of(v.texts, [&](const std::string& text) {
      return how == test::has ? text.find(c.text) != std::string::npos
                              : holds(how, order_of(text, c.text));
    });
  };
  if (c.how == test::unequal) return !is_so(test::equal);
  if (c.how == test::has_not) return !is_so(test::has);
  return is_so(c.how);
}

template <class T>
field_value field_of(const T& object, std::string_view key) {
  picker p{key};
  fields(p, object);
  return p.found ? std::move(*p.found) : field_value{};
}

template <class T>
result<void> keep_those(std::vector<T>& objects, const std::string& filter) {
  const auto c = parse_condition(filter);
  if (!c) return c.error();
  if (auto known = check_key<T>("--filter", c->key); !known) return known;
  const bool is_number = field_of(T{}, c->key).is_number;
  const bool is_of_text = c->how == test::has || c->how == test::has_not;
  if (is_number && is_of_text)
    return error(error_code::usage,
                 fmt::format("--filter: '{}': {} is a number, which is compared by = != < <= > >=",
                             filter, c->key));
  if (is_number && !c->number)
    return error(error_code::usage, fmt::format("--filter: '{}': {} is a number, and '{}' is none",
                                                filter, c->key, c->text));
  std::erase_if(objects, [&](const T& o) { return !holds(*c, field_of(o, c->key)); });
  return {};
}

template <class T>
result<void> sort_by(std::vector<T>& objects, std::string_view how) {
  const auto colon = how.rfind(':');
  const auto order = colon == std::string_view::npos ? "asc" : how.substr(colon + 1);
  const std::string key(how.substr(0, colon));
  if (order != "asc" && order != "desc")
    return error(error_code::usage,
                 fmt::format("--sort: '{}' is no order; write {}:asc or {}:desc", order, key, key));
  if (auto known = check_key<T>("--sort", key); !known) return known;
  std::vector<std::pair<field_value, T>> keyed;
  keyed.reserve(objects.size());
  for (auto& o : objects) {
    auto value = field_of(o, key);
    keyed.emplace_back(std::move(value), std::move(o));
  }
  const bool is_down = order == "desc";
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    const auto &left = is_down ? b.first : a.first, &right = is_down ? a.first : b.first;
    if (left.is_number) return left.number < right.number;
    return std::ranges::lexicographical_compare(left.texts, right.texts, natural_less);
  });
  for (std::size_t i = 0; i < objects.size(); ++i) objects[i] = std::move(keyed[i].second);
  return {};
}

template <class T>
result<std::size_t> select_of(std::vector<T>& objects, const selection& s) {
  for (const auto& filter : s.filters)
    if (auto ok = keep_those(objects, filter); !ok) return ok.error();
  if (!s.sort.empty())
    if (auto ok = sort_by(objects, s.sort); !ok) return ok.error();
  const auto all = objects.size();
  if (s.limit > 0 && all > s.limit)
    objects.erase(objects.begin() + std::ptrdiff_t(s.limit), objects.end());
  return all;
}

}  // namespace

result<std::size_t> select(std::vector<node_snapshot>& nodes, const selection& s) {
  return select_of(nodes, s);
}
result<std::size_t> select(std::vector<actor_snapshot>& actors, const selection& s) {
  return select_of(actors, s);
}
result<std::size_t> select(std::vector<job_snapshot>& jobs, const selection& s) {
  return select_of(jobs, s);
}

}  // namespace troupe
