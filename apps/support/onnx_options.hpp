#pragma once
// The flags of onnx_run.

#include <troupe/program.hpp>

#include <string>
#include <vector>

namespace troupe {

struct onnx_options {
  std::string model;
  std::vector<std::string> inputs;   // FILE or NAME=FILE
  std::string output;                // folder; empty: none
  std::vector<std::string> checked;  // folders of cases; none: the model is run
  device_flags devices;
  std::string save_onnx;  // file; empty: none
  int repeat = 0;         // further steps of the model, which are timed
  bool json = false;

  // Prints help or what is wrong with the flags, and exits (0 or 2).
  static onnx_options parse(int argc, char** argv);
};

// Prints the line; the exit code.
int fail(const error& e);

}  // namespace troupe
