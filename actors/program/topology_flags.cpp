#include "troupe/actors/program/topology_flags.hpp"

#include "troupe/actors/program/output.hpp"
#include "troupe/runtime/text/byte_size.hpp"
#include "troupe/runtime/text/duration.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace troupe {

void topology_flags::add_topology_flags(CLI::App& app) {
  add_cluster_flags(app, "Be seen while it runs, and have stages run (.on),");
  app.add_option("--threads", topology.threads,
                 "Threads that compute; without it, as many as there are cores")
      ->check(CLI::Range(1, 1024));
  app.add_option("--memory", memory_, "What all edges together may hold (64MiB, 1GiB)")
      ->capture_default_str();
  app.add_option("--name", topology.name, "What tools call the topology");
  app.add_flag("--explain", topology.explains_only,
               "Print stages, what their edges hold and where they come from; run nothing");
  app.add_flag("--json", topology.ends_with_json, "End with one line of JSON on standard output");
  app.add_option("--checkpoint", topology.checkpoint.folder,
                 "Keep in this folder how far it is, so that a program that is begun again with "
                 "--resume goes on from there");
  app.add_option("--checkpoint-every", checkpoint_every_,
                 "How often (10s): all stand still for it, as long as the longest call under way")
      ->capture_default_str();
  app.add_flag("--resume", topology.checkpoint.resume,
               "Go on with the checkpoint of a topology of this name in that folder, if there is "
               "one");
  app.add_flag("--quiet", topology.is_quiet, "Say nothing but what goes wrong");
}

std::optional<int> topology_flags::parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    say_error(fmt::format("{}: {} (see --help)", app.get_name(), e.what()));
    return static_cast<int>(error_code::usage);
  }
  if (const auto ok = read_topology_flags(app); !ok) {
    say_error(fmt::format("{}: {}", app.get_name(), ok.error().text()));
    return static_cast<int>(ok.error().code());
  }
  return std::nullopt;
}

result<void> topology_flags::read_topology_flags(const CLI::App& app) {
  if (auto ok = read_cluster_flags(app); !ok) return ok;
  const auto bytes = parse_byte_size(memory_);
  if (!bytes) return error(error_code::usage, "--memory: " + bytes.error().text());
  if (*bytes == 0) return error(error_code::usage, "--memory: nothing fits into 0 bytes");
  topology.budget_bytes = *bytes;
  if (topology.checkpoint.folder.empty() &&
      (app.count("--checkpoint") > 0 || app.count("--checkpoint-every") > 0 ||
       topology.checkpoint.resume))
    return error(error_code::usage, "--checkpoint-every and --resume need --checkpoint DIR");
  const auto every = parse_duration(checkpoint_every_);
  if (!every) return error(error_code::usage, "--checkpoint-every: " + every.error().text());
  if (*every <= 0)
    return error(error_code::usage,
                 fmt::format("--checkpoint-every {}: give a time above 0", checkpoint_every_));
  topology.checkpoint.every_ns = *every;
  return {};
}

topology_options topology_flags::options() const {
  auto o = topology;
  set_cluster(o.cluster);
  return o;
}

namespace {

topology_options parsed(int argc, char** argv) {
  std::string_view program = argc > 0 ? argv[0] : "topology";
  program.remove_prefix(program.rfind('/') + 1);
  topology_flags flags;
  flags.topology.name = program;
  CLI::App app{"Runs a topology of stages.", std::string(program)};
  app.footer(
      "Ctrl-C and SIGTERM let it finish what is under way, and with --checkpoint keep how far it "
      "is; a second one ends it at once.\n"
      "Exit codes: 0 fine, 1 a stage failed, 2 usage, 3 no cluster found, 4 timed out, 5 denied, "
      "6 not found, 130 and 143 after a signal.");
  flags.add_topology_flags(app);
  if (const auto code = flags.parse(app, argc, argv)) std::exit(*code);
  return flags.options();
}

}  // namespace

topology::topology(int argc, char** argv) : topology(parsed(argc, argv)) {}

}  // namespace troupe
