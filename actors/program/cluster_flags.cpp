#include "troupe/actors/program/cluster_flags.hpp"

#include "troupe/runtime/text/duration.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace troupe {

void cluster_flags::add_cluster_flags(CLI::App& app, const std::string& does) {
  app.add_option(
      "--cluster", cluster,
      does + " over the nodes of this cluster; without it, in this process (with --join: default)");
  app.add_option("--join", join, "HOST:PORT of a member of the cluster");
  app.add_option("--token-file", token_file, "File with the cluster's token");
  app.add_option(
      "--lease", lease_,
      "How long the cluster waits for a sign of life of this program, as at a breakpoint "
      "(1s to 1h; 1s)");
  app.add_option(
         "--timeout", wait_,
         "How long to look for the cluster, and for as many nodes as are needed (20s, 500ms)")
      ->capture_default_str();
}

result<void> cluster_flags::read_cluster_flags(const CLI::App& app) {
  if (app.count("--cluster") > 0 && cluster.empty())
    return error(error_code::usage, "--cluster: the name of the cluster is empty");
  if (cluster.empty() && (!join.empty() || !token_file.empty())) cluster = "default";
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
  o.timeout = timeout;
  o.lease = lease;
}

}  // namespace troupe
