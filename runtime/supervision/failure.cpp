#include "troupe/runtime/supervision/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

// SV-2: texts come from kernels, systems and peers.
std::string on_one_line(std::string text) {
  for (auto& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

void append(std::string& list, const std::string& what) {
  if (!list.empty()) list += ", ";
  list += what;
}

}  // namespace

std::string_view to_string(failure_policy p) noexcept {
  static constexpr std::string_view names[] = {"stop", "restart", "resume"};
  return names[static_cast<std::size_t>(p)];
}

// --- restarts ------------------------------------------------------------------------------------

std::optional<std::int64_t> restart_limiter::on_failure(std::int64_t now_ns,
                                                        std::uint64_t progress) {
  if (!has_failed_ || progress > progress_) in_vain_ = 0;
  has_failed_ = true;
  progress_ = std::max(progress_, progress);
  ++in_vain_;
  failures_.push_back(now_ns);
  while (now_ns - failures_.front() > limits_.window_ns) failures_.pop_front();
  if (in_vain_ > limits_.in_vain_max) {
    why_ = fmt::format("{} attempts in a row without a step forward", in_vain_ - 1);
    return std::nullopt;
  }
  if (failures_.size() > limits_.failures_max) {
    why_ =
        fmt::format("{} failures within {} s", failures_.size(), limits_.window_ns / 1'000'000'000);
    return std::nullopt;
  }
  if (in_vain_ == 1) return 0;
  return std::min(limits_.delay_max_ns,
                  limits_.delay_ns << std::min<std::uint32_t>(in_vain_ - 2, 20));
}

// --- root cause first ----------------------------------------------------------------------------

std::string failure::where_and_why() const {
  std::string where;
  if (!node.empty())
    append(where,
           pid != 0 ? fmt::format("node {} (pid {})", node, pid) : fmt::format("node {}", node));
  if (!actor.empty()) append(where, fmt::format("actor {}", actor));
  if (step) append(where, fmt::format("step {}", *step));
  const auto why = text.empty() ? std::string("no reason given") : text;
  return on_one_line(where.empty() ? why : fmt::format("{}: {}", where, why));
}

void failure_log::add(failure f) {
  auto& list = f.is_derived ? derived_ : own_;
  ++(f.is_derived ? derived_count_ : own_count_);
  if (list.size() < kept_max) list.push_back(std::move(f));
}

const failure* failure_log::root() const noexcept {
  return !own_.empty() ? &own_.front() : !derived_.empty() ? &derived_.front() : nullptr;
}

bool failure_log::is_settled(std::int64_t now_ns) const noexcept {
  const auto deadline = deadline_ns();
  return has_failed() && (!deadline || now_ns >= *deadline);
}

std::optional<std::int64_t> failure_log::deadline_ns() const noexcept {
  if (!own_.empty() || derived_.empty()) return std::nullopt;
  return derived_.front().time_ns + settle_ns;
}

std::string failure_log::line() const {
  const auto* f = root();
  if (f == nullptr) return "";
  // A job that nobody has named is called "job".
  const auto who = job_ == "job" ? std::string("the job") : fmt::format("job {}", job_);
  return on_one_line(fmt::format("{} failed: {}", who, f->where_and_why()));
}

}  // namespace troupe
