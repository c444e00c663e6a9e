#include "troupe/actors/program/cluster_program.hpp"

#include "troupe/actors/program/output.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>

namespace troupe {

void cluster_program::parse(int argc, char** argv, const std::string& does,
                            const std::function<void(CLI::App&)>& add) {
  CLI::App app{does + " Without --cluster all of it is in this process.", program};
  app.footer(
      "Exit codes: 0 fine, 1 failed, 2 usage, 3 no cluster found, 4 timed out, 5 denied, "
      "6 not found.");
  add_cluster_flags(app, "Run");
  add(app);
  app.add_option("--threads", threads, "Host streams of this process, on which ops run at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--json", json, "Print one line of JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    std::exit(fail(error(error_code::usage, fmt::format("{} (see --help)", e.what()))));
  }
  if (auto read = read_cluster_flags(app); !read) std::exit(fail(read.error()));
}

result<std::unique_ptr<session>> cluster_program::open() const {
  session_options options;
  options.threads = threads;
  set_cluster(options);
  if (options.cluster.empty()) options.roles = roles;
  return session::open(options);
}

int cluster_program::fail(const error& e) const {
  say_error(fmt::format("{}: {}", program, e.text()));
  return static_cast<int>(e.code());
}

void cluster_program::tell(const std::string& text, const std::string& line) const {
  (void)write_text(stdout, (json ? line : text) + "\n");
}

}  // namespace troupe
