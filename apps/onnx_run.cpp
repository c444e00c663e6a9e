// Runs a model in the ONNX format once, in this process, on arrays of NumPy's; or checks Troupe
// against folders of such models with what goes in and must come out. Reading flags, files and
// cases is in apps/support/.

#include "apps/support/onnx_cases.hpp"
#include "apps/support/onnx_options.hpp"
#include "apps/support/onnx_report.hpp"

#include <troupe/onnx.hpp>
#include <troupe/program.hpp>
#include <troupe/session.hpp>

#include <new>

using namespace troupe;

static result<int> run(session& s, const onnx_options& o) {
  const auto model = load_onnx(o.model);
  if (!model) return model.error();
  auto inputs = read_inputs(*model, o);
  if (!inputs) return inputs.error();
  if (!o.save_onnx.empty())
    if (auto saved = save_model(s, *model, *inputs, o.save_onnx); !saved)
      return error(saved.error()).while_doing("--save-onnx");
  timed_steps timed{.wanted = o.repeat};
  const auto outputs = run_model(s, *model, *inputs, o.devices, nullptr, nullptr, &timed);
  if (!outputs) return outputs.error();
  return show_outputs(*outputs, timed, o);
}

static result<int> check(session& s, const onnx_options& o) {
  const auto folders = find_cases(o.checked);
  if (!folders) return folders.error();
  if (o.devices.is_on_gpu())
    if (auto there = try_device(s, o.devices); !there) return std::move(there.error());
  check_report report(folders->size(), o);
  for (const auto& folder : *folders) report.add(check_case(s, folder, o.devices));
  return report.finish();
}

int main(int argc, char** argv) {
  troupe::take_writes_as_errors();
  const auto o = onnx_options::parse(argc, argv);
  try {
    session_options where;
    o.devices.set(where);
    const auto s = session::open(where);
    if (!s) return fail(s.error());
    const auto code = o.checked.empty() ? run(**s, o) : check(**s, o);
    return code ? *code : fail(code.error());
  } catch (const std::bad_alloc&) {  // what files ask for is an error where they are read; this is
                                     // the rest
    return fail(error(error_code::failed, "there is no memory left"));
  }
}
