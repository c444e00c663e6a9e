#pragma once
// The flags that say which cluster a program uses, if any: of every program on Troupe.

#include "troupe/actors/session/session.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace troupe {

struct cluster_flags {
  std::string cluster;  // empty: in this process
  std::vector<std::string> join;
  std::string token_file;
  wire_protection protect;
  std::chrono::milliseconds timeout{5000};
  std::chrono::milliseconds lease{0};  // 0: one second

  // `does`: what the program does there, "Train", for the help. The flags outlive the parser.
  void add_cluster_flags(CLI::App& app, const std::string& does);
  // After parsing: what is wrong, with the flag's name.
  result<void> read_cluster_flags(const CLI::App& app);
  void set_cluster(session_options& o) const;

 private:
  std::string wait_ = "5s", lease_;
};

}  // namespace troupe
