#include "troupe/runtime/plan/device_name.hpp"

#include "troupe/runtime/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace troupe {
namespace {

constexpr std::string_view form =
    "a device is written /job:NAME/task:N/cpu:N, /node:NAME/gpu:N or /label:KEY=VALUE, where parts may be left out";
constexpr std::size_t text_max = 64;

bool is_word(std::string_view s, std::string_view more) noexcept {
  return !s.empty() && s.size() <= text_max && std::all_of(s.begin(), s.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           more.find(c) != std::string_view::npos;
  });
}

bool is_job(std::string_view s) noexcept { return is_word(s, "_-"); }

std::optional<std::uint32_t> number(std::string_view s) noexcept {
  std::uint32_t n = 0;
  const auto [end, code] = std::from_chars(s.data(), s.data() + s.size(), n);
  if (code != std::errc{} || end != s.data() + s.size()) return std::nullopt;
  return n;
}

}  // namespace

bool is_node_name(std::string_view text) noexcept { return is_word(text, "_-."); }

bool is_node_label(std::string_view text) noexcept {
  const auto at = text.find('=');
  return at != std::string_view::npos && text.size() <= text_max &&
         is_word(text.substr(0, at), "_-.") && is_word(text.substr(at + 1), "_-.");
}

device_name device_name::refined_by(const device_name& wish) const {
  const auto& stream = wish.cpu || wish.gpu ? wish : *this;
  const auto& job_of = wish.job || wish.node ? wish.job : job;
  const auto& task_of = wish.task || wish.node ? wish.task : task;
  return {.job = job_of,
          .task = task_of,
          .node = wish.node || wish.job || wish.task ? wish.node : node,
          .label = wish.label || wish.node ? wish.label : label,
          .cpu = stream.cpu,
          .gpu = stream.gpu};
}

bool device_name::admits(const device_name& full) const noexcept {
  return (!job || job == full.job) && (!task || task == full.task);
}

result<device_name> parse_device(std::string_view text) {
  const auto refuse = [&](std::string_view what) {
    return error(error_code::usage, fmt::format("device '{}': {}; {}", text, what, form));
  };
  if (text.empty() || text.front() != '/') return refuse("it does not start with '/'");
  static constexpr std::string_view kinds[] = {"job", "task", "node", "label", "cpu", "gpu"};
  device_name d;
  std::size_t next_kind = 0;  // parts come in the order of `kinds`
  for (auto rest = text; !rest.empty();) {
    rest.remove_prefix(1);
    const auto part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(part.size());
    const auto colon = part.find(':');
    const auto kind = part.substr(0, colon);
    const auto what = colon == std::string_view::npos ? std::string_view{} : part.substr(colon + 1);
    const auto at = static_cast<std::size_t>(std::find(std::begin(kinds), std::end(kinds), kind) -
                                             std::begin(kinds));
    if (at == std::size(kinds))
      return refuse(fmt::format("there is no '{}' (devices are cpu and gpu)", kind));
    if (at < next_kind)
      return refuse(fmt::format("'{}' is there twice or in the wrong order", kind));
    if (kind == "gpu" && d.cpu) return refuse("it is either a cpu or a gpu");
    next_kind = at + 1;
    if (kind == "job") {
      if (!is_job(what)) return refuse(fmt::format("'{}' is no name of a job", what));
      d.job = what;
      continue;
    }
    if (kind == "node") {
      if (!is_node_name(what)) return refuse(fmt::format("'{}' is no name of a node", what));
      d.node = what;
      continue;
    }
    if (kind == "label") {
      if (!is_node_label(what)) return refuse(fmt::format("'{}' is no label KEY=VALUE", what));
      d.label = what;
      continue;
    }
    const auto n = number(what);
    if (!n) return refuse(fmt::format("'{}' is no number", what));
    if (kind == "gpu" && *n >= devices_max)
      return refuse(fmt::format("a node has {} gpus at most", devices_max));
    (kind == "task" ? d.task : kind == "cpu" ? d.cpu : d.gpu) = n;
  }
  return d;
}

std::string to_string(const device_name& d) {
  std::string text;
  if (d.job) text += "/job:" + *d.job;
  if (d.task) text += fmt::format("/task:{}", *d.task);
  if (d.node) text += "/node:" + *d.node;
  if (d.label) text += "/label:" + *d.label;
  if (d.cpu) text += fmt::format("/cpu:{}", *d.cpu);
  if (d.gpu) text += fmt::format("/gpu:{}", *d.gpu);
  return text;
}

}  // namespace troupe
