#pragma once
// The flags of a program that runs a topology. topology(argc, argv) has them and no others; a
// program with flags of its own adds these to its parser:
//
//   topology_flags flags;
//   flags.add_topology_flags(app);
//   if (const auto code = flags.parse(app, argc, argv)) return *code;
//   topology t(flags.options());

#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/program/cluster_flags.hpp"

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace troupe {

struct topology_flags : cluster_flags {
  topology_options topology{};

  // The flags outlive the parser.
  void add_topology_flags(CLI::App& app);
  // Reads all flags of `app`. The code to exit with, where the program is to end: it has printed
  // its --help, or one line on stderr of what is wrong.
  std::optional<int> parse(CLI::App& app, int argc, char** argv);
  topology_options options() const;

 private:
  result<void> read_topology_flags(const CLI::App& app);

  std::string memory_ = "64MiB", checkpoint_every_ = "10s";
};

}  // namespace troupe
