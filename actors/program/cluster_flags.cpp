#include "troupe/actors/program/cluster_flags.hpp"

#include "troupe/actors/program/protection_flags.hpp"
#include "troupe/runtime/text/duration.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <system_error>

namespace troupe {

void cluster_flags::add_cluster_flags(CLI::App& app, const std::string& does) {
  app.add_option(
      "--cluster", cluster,
      does + " over the nodes of this cluster; without it, in this process (with --join: default)");
  app.add_option(
      "--join", join,
      "HOST:PORT of a member of the cluster; dns:NAME:PORT: at all addresses of that name");
  app.add_option("--token-file", token_file, "File with the cluster's token");
  add_protection_flags(app, protect);
  app.add_option(
      "--lease", lease_,
      "How long the cluster waits for a sign of life of this program, as at a breakpoint "
      "(1s to 1h; 1s)");
  app.add_option(
         "--timeout", wait_,
         "How long to look for the cluster, and for as many nodes as are needed (20s, 500ms)")
      ->capture_default_str();
}

namespace {

// Of flags without a sign CLI11 takes -1, and all that is too large, as the largest number.
result<void> check_whole_numbers(const CLI::App& app) {
  for (const auto* flag : app.get_options()) {
    if (!flag->get_type_name().starts_with("UINT")) continue;
    for (const auto& text : flag->results()) {
      std::uint64_t number = 0;
      const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (text.starts_with('-'))
        return error(error_code::usage,
                     fmt::format("{}: {} cannot be negative", flag->get_name(), text));
      if (ec == std::errc::result_out_of_range)
        return error(
            error_code::usage,
            fmt::format("{}: {} is above the largest number, which is {}", flag->get_name(), text,
                        std::numeric_limits<std::uint64_t>::max()));
    }
  }
  return {};
}

}  // namespace

result<void> cluster_flags::read_cluster_flags(const CLI::App& app) {
  if (auto ok = check_whole_numbers(app); !ok) return ok;
  if (app.count("--cluster") > 0 && cluster.empty())
    return error(error_code::usage, "--cluster: the name of the cluster is empty");
  const bool is_protected = protect.tls || protect.insecure || protect.has_files();
  if (cluster.empty() && (!join.empty() || !token_file.empty() || is_protected))
    cluster = "default";
  const auto time = parse_duration(wait_);
  if (!time) return error(error_code::usage, "--timeout: " + time.error().text());
  timeout = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(*time));
  if (lease_.empty()) return {};
  const auto span = parse_duration(lease_);
  if (!span) return error(error_code::usage, "--lease: " + span.error().text());
  if (*span < lease_min_ns || *span > lease_max_ns)
    return error(error_code::usage, fmt::format("--lease: {} is not from 1s to 1h", lease_));
  lease = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(*span));
  return {};
}

void cluster_flags::set_cluster(session_options& o) const {
  o.cluster = cluster;
  o.join = join;
  o.token_file = token_file;
  o.protect = protect;
  o.timeout = timeout;
  o.lease = lease;
}

}  // namespace troupe
