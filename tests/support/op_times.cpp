// How long a kernel takes, for tests/ops_vs_torch.py, which asks on standard input, a line each:
//
//   op SPEC,SPEC,...                                f32[64x128],i32[64] axes=[0,2] keep=1 rate=0.25
//   [attribute=integer|real|list]...
//
// The answer is a line on standard output: nanoseconds of a run, the median of several.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/runtime/graph/op_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

using namespace troupe;

namespace {

std::vector<std::string> parts_of(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, by);) parts.push_back(part);
  return parts;
}

tensor_spec spec_of(const std::string& text) {
  const auto open = text.find('[');
  std::vector<dim> dims;
  for (const auto& n : parts_of(text.substr(open + 1, text.size() - open - 2), 'x'))
    dims.push_back({std::stoll(n), 0});
  const auto name = text.substr(0, open);
  const auto type = name == "f32"   ? dtype::f32
                    : name == "f64" ? dtype::f64
                    : name == "i32" ? dtype::i32
                    : name == "i64" ? dtype::i64
                                    : dtype::boolean;
  return {type, *shape::from(dims)};
}

// From 0.1 to 1, where functions are defined; whole numbers below 16, which are indices; half of
// them true.
tensor filled(const tensor_spec& spec) {
  auto t = tensor::make(spec);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> real(0.1F, 1.0F);
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    if (spec.type == dtype::f32) t.data<float>()[i] = real(random);
    if (spec.type == dtype::f64) t.data<double>()[i] = static_cast<double>(real(random));
    if (spec.type == dtype::i32)
      t.data<std::int32_t>()[i] = static_cast<std::int32_t>(random() % 16);
    if (spec.type == dtype::i64)
      t.data<std::int64_t>()[i] = static_cast<std::int64_t>(random() % 16);
    if (spec.type == dtype::boolean)
      t.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(random() % 2);
  }
  return t;
}

void set(attributes& attrs, const std::string& text) {
  const auto at = text.find('=');
  const auto name = text.substr(0, at), value = text.substr(at + 1);
  if (value.front() == '[') {
    std::vector<std::int64_t> all;
    for (const auto& n : parts_of(value.substr(1, value.size() - 2), ','))
      all.push_back(std::stoll(n));
    attrs.set(name, all);
  } else if (value.find('.') != std::string::npos) {
    attrs.set(name, std::stod(value));
  } else {
    attrs.set(name, static_cast<std::int64_t>(std::stoll(value)));
  }
}

result<double> time_of(const op_table& ops, const kernel_table& kernels, host_device& device,
                       const std::string& line) {
  std::istringstream in(line);
  std::string op, specs, attribute;
  in >> op >> specs;
  attributes attrs;
  while (in >> attribute) set(attrs, attribute);
  std::vector<tensor_spec> operands;
  std::vector<tensor> inputs, outputs;
  for (const auto& s : parts_of(specs, ','))
    operands.push_back(spec_of(s)), inputs.push_back(filled(operands.back()));
  const auto* row = ops.find(op);
  const auto* kernel = kernels.find(op);
  if (row == nullptr || kernel == nullptr) return error(error_code::usage, "there is no op " + op);
  const tag t;
  const auto shapes = row->shapes(attrs, operands, &t);
  if (!shapes) return shapes.error();
  for (const auto& s : *shapes) outputs.push_back(tensor::make(s));
  auto k = kernel->make(attrs, device);
  if (!k) return k.error();
  if (auto ok = (*k)->prepare(operands, *shapes); !ok) return ok.error();
  const auto run = [&](std::int64_t times) -> result<double> {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < times; ++i)
      if (auto ok = (*k)->run(t, inputs, outputs); !ok) return ok.error();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
               .count() /
           static_cast<double>(times);
  };
  const auto once = run(2);
  if (!once) return once.error();
  const auto times = std::max<std::int64_t>(1, static_cast<std::int64_t>(5e6 / *once));
  std::vector<double> all;
  for (int i = 0; i < 5; ++i) all.push_back(*run(times));
  std::sort(all.begin(), all.end());
  return all[2];
}

}  // namespace

int main() {
  set_up_kernel_thread();
  const auto ops = make_op_table();
  const auto kernels = make_host_kernels();
  host_device device;
  for (std::string line; std::getline(std::cin, line);) {
    const auto ns = time_of(ops, kernels, device, line);
    if (!ns) {
      fmt::print(stderr, "op_times: {}: {}\n", line, ns.error().text());
      return 2;
    }
    fmt::print("{:.1f}\n", *ns);
    std::fflush(stdout);
  }
  return 0;
}
