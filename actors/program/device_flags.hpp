#pragma once
// The flags that say where ops run, and in which precision: of every program that trains or runs a
// graph.

#include "troupe/actors/session/session.hpp"

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace troupe {

struct device_flags {
  std::string device;         // of ops that wish for none, as compile_options has it: "/gpu:0"
  std::string gpus = "auto";  // devices of this process
  std::uint64_t gpu_memory_bytes = 0;
  bool soft_placement = true;
  precision_kind precision = precision_kind::f32;

  bool is_on_gpu() const { return device.find("/gpu:") != std::string::npos; }

  // `where`: whose devices they are, and what stays on the host, for the help. The flags outlive
  // the parser.
  void add_to(CLI::App& app, const std::string& where);
  // After parsing: what is wrong, with the flag's name.
  result<void> read();
  void set(compile_options& o) const;
  void set(session_options& o) const;

 private:
  std::string precision_name_ = "f32", gpu_memory_;
  bool hard_placement_ = false;
};

}  // namespace troupe
