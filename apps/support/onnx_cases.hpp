#pragma once
// Models that onnx_run runs: their inputs from files, and cases in the layout of the format's own
// tests (a folder with model.onnx and test_data_set_N/input_K.pb, output_K.pb).

#include "apps/support/onnx_options.hpp"

#include <troupe/data.hpp>
#include <troupe/onnx.hpp>
#include <troupe/session.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

using named_values = std::vector<std::pair<std::string, tensor>>;

// By the model's names. usage: too many or too few; not_found: no such file or input.
result<named_values> read_inputs(const onnx_model& m, const onnx_options& o);
// Ops that a step of a model was compiled to.
struct placed_ops {
  std::uint64_t on_device = 0;
  std::map<std::string, std::uint64_t> on_host{};  // by type
};
// How long further steps of a model took.
struct timed_steps {
  int wanted = 0;
  std::vector<double> ms{};
};
// One step of the model. `missing` as of onnx_model::build; `placed`, where given: what ran where;
// `timed`, where given: so many further steps, whose results are dropped.
result<std::vector<named_tensor>> run_model(session& s, const onnx_model& m,
                                            const named_values& inputs, const device_flags& where,
                                            std::string* missing = nullptr,
                                            placed_ops* placed = nullptr,
                                            timed_steps* timed = nullptr);
// The model, built for these inputs, as another file.
result<void> save_model(session& s, const onnx_model& m, const named_values& inputs,
                        const std::string& path);
// Whether the device is there, and runs an op.
result<void> try_device(session& s, const device_flags& where);

// The folders with a model.onnx at or below these, in order of their names. not_found: one that
// does not exist, or has none.
result<std::vector<std::string>> find_cases(const std::vector<std::string>& folders);

struct case_outcome {
  enum class kind { passed, failed, unsupported } type = kind::passed;
  std::string name;     // of the folder
  std::string op;       // unsupported: the node's op
  std::string why;      // failed, unsupported
  double error = 0;     // the largest deviation, relative to what is allowed: above 1 it failed
  placed_ops placed{};  // of its last data set; with a device only
};
// Floating point: rtol 1e-3 (bf16 2^-7) and atol 1e-7; where products compute in halves, 2^-8 (f16)
// or 2^-5 (bf16) for both. Others must be equal. All data sets of the case.
case_outcome check_case(session& s, const std::string& folder, const device_flags& where);

}  // namespace troupe
