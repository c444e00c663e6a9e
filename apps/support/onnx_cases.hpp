#pragma once
// Models that onnx_run runs: their inputs from files, and cases in the layout of the format's own tests (a folder with model.onnx and
// test_data_set_N/input_K.pb, output_K.pb).

#include "actors/session.hpp"
#include "apps/support/onnx_options.hpp"
#include "devices/host/safetensors.hpp"
#include "runtime/onnx/onnx_import.hpp"

#include <string>
#include <utility>
#include <vector>

namespace troupe {

using named_values = std::vector<std::pair<std::string, tensor>>;

// By the model's names. usage: too many or too few; not_found: no such file or input.
result<named_values> read_inputs(const onnx_model& m, const onnx_options& o);
// One step of the model. `missing` as of onnx_model::build.
result<std::vector<named_tensor>> run_model(session& s, const onnx_model& m, const named_values& inputs, std::string* missing = nullptr);

// The folders with a model.onnx at or below these, in order of their names. not_found: one that does not exist, or has none.
result<std::vector<std::string>> find_cases(const std::vector<std::string>& folders);

struct case_outcome {
  enum class kind { passed, failed, unsupported } type = kind::passed;
  std::string name;  // of the folder
  std::string op;    // unsupported: the node's op
  std::string why;   // failed, unsupported
  double error = 0;  // the largest deviation, relative to what is allowed: above 1 it failed
};
// Floating point: rtol 1e-3 (bf16 2^-7) and atol 1e-7, others must be equal. All data sets of the case.
case_outcome check_case(session& s, const std::string& folder);

}  // namespace troupe
