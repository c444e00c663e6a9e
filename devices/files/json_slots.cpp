#include "troupe/devices/files/json_slots.hpp"

#include "troupe/devices/files/file_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace troupe {
namespace {

constexpr std::size_t places_max = 100;  // in each other (JS-3): those who destroy them recurse
constexpr int number_beyond = 406;       // of the library's errors

// Takes what the library finds, piece by piece.
class slot_filler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  slot_filler(json_slot root, std::string_view name) : root_(root), name_(name) {}
  std::optional<error> failed;

  bool null() override {
    // An optional of anything is null itself, not what is in it.
    return scalar("null", [](const json_slot& s) { return call(s.type->take_null, s.at); });
  }
  bool boolean(bool v) override {
    return scalar(v ? "true" : "false",
                  [&](const json_slot& s) { return call(s.type->take_bool, s.at, v); });
  }
  bool number_integer(std::int64_t v) override {
    return scalar(v, [&](const json_slot& s) { return call(s.type->take_signed, s.at, v); });
  }
  bool number_unsigned(std::uint64_t v) override {
    return scalar(v, [&](const json_slot& s) { return call(s.type->take_unsigned, s.at, v); });
  }
  bool number_float(double v, const std::string& text) override {
    return scalar(text, [&](const json_slot& s) {
      return call(s.type->take_floating, s.at, v, std::string_view(text));
    });
  }
  bool string(std::string& v) override {
    if (passes_over()) return true;
    const auto slot = next();
    return call_within(slot,
                       [&](const json_slot& s) { return call(s.type->take_text, s.at, v); }) ||
           refuse(slot, host::quoted(v));
  }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // JSON has none

  bool start_object(std::size_t) override {
    return start("an object", [](const json_type& t) { return t.member != nullptr; });
  }
  bool start_array(std::size_t) override {
    return start("a list", [](const json_type& t) { return t.add != nullptr; });
  }
  bool key(std::string& k) override {
    if (depth_passed_over_ > 0) return true;
    auto& object = open_.back();
    const auto& keys = object.slot.type->keys;
    const auto at = static_cast<std::size_t>(std::ranges::find(keys, k) - keys.begin());
    is_passed_over_ = at == keys.size();
    if (is_passed_over_) return true;
    object.index = at;
    if (object.has_come[at]) return fail("it stands twice");
    object.has_come[at] = true;
    return true;
  }
  bool end_object() override {
    if (ends_passed_over()) return true;
    auto& object = open_.back();
    for (std::size_t i = 0; i < object.has_come.size(); ++i) {
      if (object.has_come[i]) continue;
      object.index = i;
      if (!object.slot.type->member(object.slot.at, i).type->may_miss) return fail("it is missing");
    }
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    if (!ends_passed_over()) open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string& last,
                   const nlohmann::detail::exception& why) override {
    failed.emplace(error_code::usage,
                   why.id == number_beyond
                       ? fmt::format("{}: a number is larger than those of 64 bits: {}", name_,
                                     host::quoted(last))
                       : fmt::format("{}: no JSON at byte {}, behind {}", name_, position,
                                     host::quoted(last)));
    return false;
  }

 private:
  // An object or a list that has not ended.
  struct level {
    json_slot slot;
    std::size_t index = 0;       // the key of the value at hand, or how many elements there are
    std::vector<bool> has_come;  // of an object's keys
  };

  template <class F, class... Args>
  static bool call(F* f, Args&&... args) {
    return f != nullptr && f(std::forward<Args>(args)...);
  }
  // Into the first place that takes such: the one at hand, or what lies in an optional.
  template <class F>
  static bool call_within(json_slot slot, F&& f) {
    while (slot.type->inner != nullptr) slot = slot.type->inner(slot.at);
    return f(slot);
  }

  // The value at hand has no place.
  bool passes_over() { return depth_passed_over_ > 0 || std::exchange(is_passed_over_, false); }
  bool ends_passed_over() {
    if (depth_passed_over_ == 0) return false;
    --depth_passed_over_;
    return true;
  }
  json_slot next() {
    if (open_.empty()) return root_;
    auto& in = open_.back();
    if (in.slot.type->member != nullptr) return in.slot.type->member(in.slot.at, in.index);
    ++in.index;
    return in.slot.type->add(in.slot.at);
  }
  template <class Found, class F>
  bool scalar(const Found& found, F&& f) {
    if (passes_over()) return true;
    const auto slot = next();
    if (slot.type->take_null != nullptr && slot.type->inner != nullptr && f(slot)) return true;
    return call_within(slot, f) || refuse(slot, fmt::format("{}", found));
  }
  template <class F>
  bool start(std::string_view found, F&& fits) {
    if (passes_over()) {
      ++depth_passed_over_;
      return true;
    }
    auto slot = next();
    while (slot.type->inner != nullptr) slot = slot.type->inner(slot.at);
    if (!fits(*slot.type)) return refuse(slot, found);
    if (open_.size() == places_max)
      return fail(fmt::format("more than {} objects and lists lie in each other", places_max));
    if (slot.type->clear != nullptr) slot.type->clear(slot.at);
    open_.push_back({slot, 0, std::vector<bool>(slot.type->keys.size())});
    return true;
  }

  bool refuse(json_slot slot, std::string_view found) {
    while (slot.type->inner != nullptr) slot = slot.type->inner(slot.at);
    return fail(fmt::format("expected {}, found {}", slot.type->expected, found));
  }
  bool fail(std::string_view what) {
    std::string path;
    for (const auto& l : open_)
      if (l.slot.type->member != nullptr)
        path += fmt::format("{}{}", path.empty() ? "" : ".", l.slot.type->keys[l.index]);
      else
        path += fmt::format("[{}]", l.index - (l.index > 0 ? 1 : 0));
    failed.emplace(error_code::usage, path.empty()
                                          ? fmt::format("{}: {}", name_, what)
                                          : fmt::format("{}, key '{}': {}", name_, path, what));
    return false;
  }

  json_slot root_;
  std::string_view name_;
  std::vector<level> open_;
  bool is_passed_over_ = false;
  std::size_t depth_passed_over_ = 0;
};

}  // namespace

result<void> parse_json(std::string_view text, json_slot into, std::string_view name) {
  slot_filler filler(into, name);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &filler)) return {};
  expects(filler.failed.has_value(), "what ends the parser says why");
  return std::move(*filler.failed);
}

}  // namespace troupe
