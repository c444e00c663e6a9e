#include "troupe/actors/program/device_flags.hpp"

#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/text/byte_size.hpp"

#include <CLI/CLI.hpp>

namespace troupe {

void device_flags::add_to(CLI::App& app, const std::string& where) {
  const CLI::Validator is_given(
      [](const std::string& text) { return text.empty() ? "give cpu:N or gpu:N" : ""; },
      "cpu:N|gpu:N");
  app.add_option("--device", device, "Where ops run: cpu:N, or gpu:N " + where)->check(is_given);
  app.add_flag("--hard-placement", hard_placement_,
               "An op that --device cannot run is an error; else it runs on the host");
  app.add_option(
         "--gpus", gpus,
         "Devices of this process: auto (all chips), none, N (N virtual devices, which share the "
         "chips) or host:N (N asynchronous host devices, which stand in for a chip)")
      ->capture_default_str();
  app.add_option("--gpu-memory", gpu_memory_, "Bytes that jobs may use on each device (2GiB)");
  app.add_option(
         "--precision", precision_name_,
         "Type in which products, convolutions and attention compute: f32, bf16 or f16, with sums "
         "in f32; variables, their updates and all else stay f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
}

result<void> device_flags::read() {
  if (!device.empty()) {
    device = device == "gpu" ? "/gpu:0" : device.starts_with('/') ? device : "/" + device;
    if (auto ok = check_default_device(device); !ok)
      return std::move(ok.error().while_doing("--device"));
  }
  if (!gpu_memory_.empty()) {
    auto bytes = parse_byte_size(gpu_memory_);
    if (!bytes) return std::move(bytes.error().while_doing("--gpu-memory"));
    gpu_memory_bytes = *bytes;
  }
  precision = *precision_named(precision_name_);
  soft_placement = !hard_placement_;
  return {};
}

void device_flags::set(compile_options& o) const {
  o.precision = precision;
  o.soft_placement = soft_placement;
  o.device = device;
}

void device_flags::set(session_options& o) const {
  o.gpus = gpus;
  o.gpu_memory_bytes = gpu_memory_bytes;
}

}  // namespace troupe
