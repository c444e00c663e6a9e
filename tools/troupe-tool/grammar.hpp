#pragma once
// Verbs and flags of `troupe`, for who reads a command line and for who completes one.

#include "tools/troupe-tool/command.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace troupe {

// What is read as text, and checked when all of it is there.
struct grammar_texts {
  std::string timeout, kind, condition, doing, update, fuse, replicas, shell, context;
  std::string level = "info", seconds = "1", slow_seconds = "2", interval = "1s";
  std::uint32_t workers = 0, shards = 0;  // 0: not said
  bool dot = false, svg = false;
};

// Both outlive the parsing.
void set_grammar(CLI::App& app, command& c, grammar_texts& t);

}  // namespace troupe
