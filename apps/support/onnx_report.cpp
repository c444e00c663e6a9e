#include "apps/support/onnx_report.hpp"

#include <troupe/data.hpp>
#include <troupe/program.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unistd.h>

namespace troupe {

namespace {

constexpr std::int64_t elements_shown = 6;

template <class F>
auto with_element(const tensor& t, std::int64_t i, F f) {
  switch (t.type()) {
    case dtype::f32: return f(t.data<float>()[i]);
    case dtype::f64: return f(t.data<double>()[i]);
    case dtype::i32: return f(t.data<std::int32_t>()[i]);
    case dtype::i64: return f(t.data<std::int64_t>()[i]);
    case dtype::u8: return f(t.data<std::uint8_t>()[i]);
    case dtype::boolean: return f(bool(t.data<boolean>()[i]));
    case dtype::f16: return f(to_f32(t.data<f16>()[i]));
    case dtype::bf16: return f(to_f32(t.data<bf16>()[i]));
  }
  return f(0);
}

std::string some_elements(const tensor& t) {
  std::string out;
  for (std::int64_t i = 0; i < std::min(t.elements(), elements_shown); ++i)
    out += (i == 0 ? "" : ", ") + with_element(t, i, [](auto x) { return fmt::format("{}", x); });
  return out + (t.elements() > elements_shown ? ", ..." : "");
}

nlohmann::ordered_json json_of(const named_tensor& o, const std::string& file) {
  nlohmann::ordered_json j;
  j["name"] = o.name;
  j["dtype"] = to_string(o.values.type());
  j["shape"] =
      std::vector<std::int64_t>(o.values.shape().sizes().begin(), o.values.shape().sizes().end());
  j["values"] = nlohmann::ordered_json::array();
  for (std::int64_t i = 0; i < std::min(o.values.elements(), elements_shown); ++i)
    with_element(o.values, i, [&](auto x) {
      j["values"].push_back(x);
      return 0;
    });
  if (!file.empty()) j["file"] = file;
  return j;
}

// One line; names that are not ASCII, or not even UTF-8, do no harm where they are printed.
std::string in_ascii(const nlohmann::ordered_json& j) {
  return j.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

// A file's name from any name: no folders, nothing hidden, nothing that a terminal obeys, each
// once.
std::string file_name(const std::string& name, std::set<std::string>& taken) {
  std::string base = printable(name, '_', 200);
  std::ranges::replace(base, '/', '_');
  if (base.empty() || base[0] == '.') base = "_" + base;
  auto out = base;
  for (int i = 1; !taken.insert(out).second; ++i) out = fmt::format("{}_{}", base, i);
  return out + ".npy";
}

result<int> written(const std::string& text) {
  if (!write_text(stdout, text) || std::fflush(stdout) != 0)
    return error(error_code::failed, "standard output cannot be written");
  return 0;
}

}  // namespace

result<int> show_outputs(std::span<const named_tensor> outputs, const timed_steps& timed,
                         const onnx_options& o) {
  std::string text;
  auto all = nlohmann::ordered_json::array();
  std::set<std::string> taken;
  if (!o.output.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(o.output, failed);
    if (!std::filesystem::is_directory(o.output, failed))
      return error(error_code::usage,
                   fmt::format("--output {}: not a folder, and none can be made", o.output));
  }
  for (const auto& out : outputs) {
    std::string file;
    if (!o.output.empty()) {
      file = (std::filesystem::path(o.output) / file_name(out.name, taken)).string();
      if (auto saved = save_npy(file, out.values); !saved) return std::move(saved.error());
    }
    text += fmt::format("{} {}: {}\n", printable(out.name), to_string(out.values.spec()),
                        some_elements(out.values));
    all.push_back(json_of(out, file));
  }
  if (o.json) {
    nlohmann::ordered_json j{{"outputs", all}};
    if (!timed.ms.empty()) j["step_ms"] = timed.ms;
    return written(in_ascii(j) + "\n");
  }
  if (!timed.ms.empty()) {
    auto ms = timed.ms;
    std::ranges::sort(ms);
    text += fmt::format("{} steps: median {:.3f} ms, from {:.3f} to {:.3f} ms\n", ms.size(),
                        ms[ms.size() / 2], ms.front(), ms.back());
  }
  return written(text);
}

check_report::check_report(std::size_t cases, const onnx_options& o)
    : options_(o), bar_(cases, ::isatty(STDERR_FILENO) != 1) {}

void check_report::add(case_outcome c) {
  std::string line;
  const auto name = printable(c.name);
  switch (c.type) {
    case case_outcome::kind::passed: ++passed_, line = fmt::format("pass         {}", name); break;
    case case_outcome::kind::failed:
      ++failed_, line = fmt::format("fail         {}: {}", name, c.why);
      break;
    case case_outcome::kind::unsupported:
      ++unsupported_, ++missing_[c.op],
          line = fmt::format("unsupported  {}: {}: {}", name, c.op, c.why);
      break;
  }
  if (c.type == case_outcome::kind::passed) {
    on_device_ += c.placed.on_device;
    cases_on_device_ += c.placed.on_device > 0;
    for (const auto& [type, count] : c.placed.on_host) on_host_[type] += count;
  }
  if (!options_.json) (void)write_text(stdout, line + "\n");
  done_.push_back(std::move(c));
  bar_.show(done_.size(),
            fmt::format("{} passed, {} failed, {} unsupported", passed_, failed_, unsupported_));
}

int check_report::finish() {
  std::string text;
  if (options_.json) {
    text = json() + "\n";
  } else {
    text = fmt::format("{} passed, {} failed, {} unsupported", passed_, failed_, unsupported_);
    std::string ops;
    for (const auto& [op, count] : missing_)
      ops += fmt::format("{}{} {}", ops.empty() ? "" : ", ", op, count);
    text += ops.empty() ? "\n" : fmt::format(" ({})\n", ops);
    if (options_.devices.is_on_gpu()) text += devices_text();
  }
  if (const auto out = written(text); !out) return fail(out.error());
  return failed_ > 0 ? static_cast<int>(error_code::failed) : 0;
}

std::uint64_t check_report::ops_on_host() const {
  std::uint64_t n = 0;
  for (const auto& [type, count] : on_host_) n += count;
  return n;
}

// Of the cases that passed: nothing is said of others, which may not have run at all.
std::string check_report::devices_text() const {
  std::string types;
  for (const auto& [type, count] : on_host_)
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", type, count);
  return fmt::format("of those that passed, {} ran ops on {}: {} ops there, {} on the host{}\n",
                     cases_on_device_, options_.devices.device.substr(1), on_device_, ops_on_host(),
                     types.empty() ? "" : fmt::format(" ({})", types));
}

std::string check_report::json() const {
  nlohmann::ordered_json j;
  j["passed"] = passed_, j["failed"] = failed_, j["unsupported"] = unsupported_;
  j["unsupported_ops"] = nlohmann::ordered_json::object();
  for (const auto& [op, count] : missing_) j["unsupported_ops"][op] = count;
  if (options_.devices.is_on_gpu()) {
    j["device"] = options_.devices.device.substr(1);
    j["cases_on_device"] = cases_on_device_, j["ops_on_device"] = on_device_,
    j["ops_on_host"] = ops_on_host();
    j["host_op_types"] = nlohmann::ordered_json::object();
    for (const auto& [type, count] : on_host_) j["host_op_types"][type] = count;
  }
  j["cases"] = nlohmann::ordered_json::array();
  for (const auto& c : done_) {
    nlohmann::ordered_json one{{"name", c.name}};
    one["result"] = c.type == case_outcome::kind::passed   ? "passed"
                    : c.type == case_outcome::kind::failed ? "failed"
                                                           : "unsupported";
    if (!c.op.empty()) one["op"] = c.op;
    if (!c.why.empty()) one["why"] = c.why;
    if (c.type != case_outcome::kind::unsupported) one["error"] = c.error;
    if (options_.devices.is_on_gpu() && c.type == case_outcome::kind::passed) {
      std::uint64_t on_host = 0;
      for (const auto& [type, count] : c.placed.on_host) on_host += count;
      one["ops_on_device"] = c.placed.on_device, one["ops_on_host"] = on_host;
    }
    j["cases"].push_back(std::move(one));
  }
  return in_ascii(j);
}

}  // namespace troupe
