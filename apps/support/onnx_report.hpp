#pragma once
// What onnx_run prints and writes.

#include "apps/support/onnx_cases.hpp"
#include "apps/support/onnx_options.hpp"

#include <troupe/program.hpp>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// Names, types, shapes, a few elements; and the files that are asked for. The exit code.
result<int> show_outputs(std::span<const named_tensor> outputs, const timed_steps& timed,
                         const onnx_options& o);

// Cases as they are done, and their totals.
class check_report {
 public:
  check_report(std::size_t cases, const onnx_options& o);
  void add(case_outcome c);
  // The exit code: 1 where a case failed.
  int finish();

 private:
  std::string json() const;
  std::string devices_text() const;
  std::uint64_t ops_on_host() const;

  const onnx_options& options_;
  progress_bar bar_;
  std::vector<case_outcome> done_;
  std::map<std::string, std::uint64_t> missing_;  // by op
  std::map<std::string, std::uint64_t> on_host_;  // of those that passed, by type
  std::uint64_t on_device_ = 0, cases_on_device_ = 0;
  std::uint64_t passed_ = 0, failed_ = 0, unsupported_ = 0;
};

}  // namespace troupe
