#pragma once
// What a program with a loop of its own has at its front: flags, the session, errors and exit
// codes. (Programs that train() have training_flags.hpp.)
//
//   struct options : cluster_program { std::uint32_t steps = 100; };
//   int main(int argc, char** argv) {
//     options o;
//     o.program = "own_loop";
//     o.parse(argc, argv, "Does this and that.", [&](CLI::App& app) {
//       app.add_option("--steps", o.steps, "Steps")->capture_default_str();
//     });
//     auto s = o.open();
//     if (!s) return o.fail(s.error());
//     ...
//   }
//
// Exit codes: 0 fine, 1 failed, 2 usage, 3 no cluster found, 4 timed out, 5 denied, 6 not found.

#include "troupe/actors/program/cluster_flags.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct cluster_program : cluster_flags {
  std::string program;               // its name, which begins what it says
  bool json = false;                 // --json: one line on stdout
  std::uint32_t threads = 1;         // --threads: streams of this process
  std::vector<std::string> roles{};  // session_options::roles, without --cluster

  // Ends the program for --help, and where a flag is wrong. `add`: the program's own flags.
  void parse(int argc, char** argv, const std::string& does,
             const std::function<void(CLI::App&)>& add);
  result<std::unique_ptr<session>> open() const;
  // Says it on stderr; the exit code.
  int fail(const error& e) const;
  // One line on stdout: `line` with --json, else `text`.
  void tell(const std::string& text, const std::string& line) const;
};

}  // namespace troupe
