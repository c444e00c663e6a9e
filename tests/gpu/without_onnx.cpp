// The bundle has no room for what reads and writes ONNX models: its programs refuse --save-onnx,
// before they begin, with what to do instead.

#include "troupe/runtime/onnx/onnx_export.hpp"

namespace troupe {

result<void> can_save_onnx(const std::string& path) {
  return error(
      error_code::usage,
      "'" + path +
          "': the programs of the bundle write no ONNX models; build/bin/ has those that do");
}

result<void> save_onnx(const graph&, std::span<const onnx_value>, const std::string& path,
                       const onnx_save_options&, source_location where) {
  auto refused = can_save_onnx(path);
  return refused.error().at(where);
}

}  // namespace troupe
