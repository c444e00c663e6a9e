#pragma once
// The flags of a program that runs a topology. topology(argc, argv) has them and no others; a
// program with flags of its own adds these to its parser:
//
//   topology_flags flags;
//   flags.add_topology_flags(app);
//   ... parse ...
//   if (auto ok = flags.read_topology_flags(app); !ok) ...
//   topology t(flags.options());

#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/program/cluster_flags.hpp"

#include <string>

namespace CLI {
class App;
}

namespace troupe {

struct topology_flags : cluster_flags {
  topology_options topology{};

  // The flags outlive the parser.
  void add_topology_flags(CLI::App& app);
  result<void> read_topology_flags(const CLI::App& app);
  topology_options options() const;

 private:
  std::string memory_ = "64MiB";
};

}  // namespace troupe
