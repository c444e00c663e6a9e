#include "apps/support/onnx_options.hpp"

#include <troupe/program.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>

namespace troupe {

int fail(const error& e) {
  say_error("onnx_run: " + e.message());
  return static_cast<int>(e.code());
}

onnx_options onnx_options::parse(int argc, char** argv) {
  onnx_options o;
  CLI::App app{
      "Runs a model in the ONNX format once, in this process, or checks Troupe against folders of models and their results.",
      "onnx_run"};
  app.footer("Exit codes: 0 fine, 1 a case failed, 2 usage or a bad file, 6 no such file.");
  auto* model = app.add_option("MODEL", o.model, "The model to run");
  auto* inputs = app.add_option(
      "--input", o.inputs, "A .npy file for each input, in the model's order, or as NAME=FILE");
  auto* output = app.add_option("--output", o.output,
                                "Write each output to NAME.npy in this folder, which is made");
  auto* repeat =
      app.add_option("--repeat", o.repeat, "Run so many further steps, and tell how long each took")
          ->check(CLI::Range(1, 1'000'000));
  auto* save = app.add_option(
      "--save-onnx", o.save_onnx,
      "Write the model to this file as it was built for these inputs, with ops of opset 20");
  auto* check = app.add_option(
      "--check", o.checked,
      "Folders with model.onnx and test_data_set_*/input_*.pb, output_*.pb, or of such folders: run each and compare");
  o.devices.add_to(
      app,
      "of this process. Branches and loops stay on the host. With --check, how many ops ran where is counted");
  check->excludes(model)->excludes(inputs)->excludes(output)->excludes(repeat)->excludes(save);
  app.add_flag("--json", o.json, "One line of JSON on standard output");
  app.set_version_flag("--version", fmt::format("onnx_run {}", version()));
  const auto refuse = [](const std::string& text) {
    say_error("onnx_run: " + text);
    std::exit(2);
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    refuse(fmt::format("{} (see --help)", e.what()));
  }
  if (auto ok = o.devices.read(); !ok) refuse(ok.error().message());
  if (o.model.empty() && o.checked.empty()) refuse("give a MODEL, or --check DIR (see --help)");
  return o;
}

}  // namespace troupe
