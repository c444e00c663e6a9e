#include "troupe/runtime/analysis/op_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace troupe {

namespace {

constexpr std::size_t key_max = 1024;          // bytes; longer ones are cut
constexpr std::uint64_t remembered_runs = 64;  // what older runs weigh at most
constexpr double most_ns = 1e15;

void append_specs(std::string& to, std::span<const tensor_spec> specs) {
  for (const auto& s : specs) {
    to += ' ';
    to += to_string(s);
  }
}

}  // namespace

std::string op_times::key_of(std::span<const planned_op> ops, std::span<const tensor_spec> inputs,
                             std::span<const tensor_spec> outputs) {
  std::string key;
  for (const auto& op : ops) {
    if (!key.empty()) key += '+';
    key += op.type + ":" + op.name;
  }
  append_specs(key, inputs);
  key += " ->";
  append_specs(key, outputs);
  std::ranges::replace_if(
      key, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  if (key.size() > key_max) key.resize(key_max);
  return key;
}

void op_times::add(const std::string& key, std::uint64_t runs, double total_ns) {
  if (runs == 0 || !std::isfinite(total_ns) || total_ns < 0) return;
  const auto mean = std::min(total_ns / static_cast<double>(runs), most_ns);
  const auto at = entries_.find(key);
  if (at == entries_.end()) {
    if (entries_.size() < entries_max) entries_.emplace(key, entry{mean, runs});
    return;
  }
  auto& e = at->second;
  const auto before = static_cast<double>(std::min(e.runs, remembered_runs));
  const auto now = static_cast<double>(runs);
  e.mean_ns = (e.mean_ns * before + mean * now) / (before + now);
  e.runs = std::min(e.runs, remembered_runs) + std::min(runs, remembered_runs);
}

std::optional<double> op_times::mean_ns(const std::string& key) const {
  const auto at = entries_.find(key);
  return at == entries_.end() ? std::nullopt : std::optional(at->second.mean_ns);
}

std::string op_times::text() const {
  std::string out;
  for (const auto& [key, e] : entries_)
    out += fmt::format("{:.0f} {} {}\n", e.mean_ns, std::min(e.runs, remembered_runs), key);
  return out;
}

op_times op_times::parse(std::string_view text) {
  op_times out;
  while (!text.empty() && out.entries_.size() < entries_max) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    double ns = 0;
    std::uint64_t runs = 0;
    const auto* end = line.data() + line.size();
    const auto first = std::from_chars(line.data(), end, ns);
    if (first.ec != std::errc{} || first.ptr == end || *first.ptr != ' ') continue;
    const auto second = std::from_chars(first.ptr + 1, end, runs);
    if (second.ec != std::errc{} || second.ptr == end || *second.ptr != ' ') continue;
    const std::string key(second.ptr + 1, end);
    if (key.empty() || key.size() > key_max || runs == 0 || !std::isfinite(ns) || ns < 0) continue;
    out.entries_.insert_or_assign(key,
                                  entry{std::min(ns, most_ns), std::min(runs, remembered_runs)});
  }
  return out;
}

}  // namespace troupe
