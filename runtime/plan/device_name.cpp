#include "troupe/runtime/plan/device_name.hpp"

#include "troupe/runtime/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace troupe {
namespace {

constexpr std::string_view form =
    "a device is written /job:NAME/task:N/cpu:N or /job:NAME/task:N/gpu:N, where parts may be left out";

bool is_job(std::string_view s) noexcept {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::optional<std::uint32_t> number(std::string_view s) noexcept {
  std::uint32_t n = 0;
  const auto [end, code] = std::from_chars(s.data(), s.data() + s.size(), n);
  if (code != std::errc{} || end != s.data() + s.size()) return std::nullopt;
  return n;
}

}  // namespace

device_name device_name::refined_by(const device_name& wish) const {
  const auto& stream = wish.cpu || wish.gpu ? wish : *this;
  return {.job = wish.job ? wish.job : job,
          .task = wish.task ? wish.task : task,
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
  static constexpr std::string_view kinds[] = {"job", "task", "cpu", "gpu"};
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
  if (d.cpu) text += fmt::format("/cpu:{}", *d.cpu);
  if (d.gpu) text += fmt::format("/gpu:{}", *d.gpu);
  return text;
}

}  // namespace troupe
