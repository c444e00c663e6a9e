#pragma once
// Runs one op of the host's table on given tensors, as the engine would: make, prepare, run.

#include "troupe/devices/host/host_device.hpp"

#include <boost/test/unit_test.hpp>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace troupe::test {

class kernel_harness {
 public:
  result<std::unique_ptr<kernel>> make(const std::string& op, const attributes& attrs = {}) {
    const auto* row = table_.find(op);
    BOOST_REQUIRE_MESSAGE(row != nullptr, "no kernel " << op);
    return row->make(attrs, device_);
  }

  result<std::vector<tensor>> run(const std::string& op, const std::vector<tensor>& inputs,
                                  const std::vector<tensor_spec>& outputs,
                                  const attributes& attrs = {}, std::uint64_t step = 0) {
    auto k = make(op, attrs);
    if (!k) return std::move(k.error());
    return run(**k, inputs, outputs, step);
  }

  static result<std::vector<tensor>> run(kernel& k, const std::vector<tensor>& inputs,
                                         const std::vector<tensor_spec>& outputs,
                                         std::uint64_t step = 0) {
    std::vector<tensor_spec> specs;
    for (const auto& t : inputs) specs.push_back(t.spec());
    if (auto ok = k.prepare(specs, outputs); !ok) return std::move(ok.error());
    std::vector<tensor> results;
    for (const auto& s : outputs) results.push_back(tensor::make(s));
    tag t;
    t.step = step;
    if (auto ok = k.run(t, inputs, results); !ok) return std::move(ok.error());
    return results;
  }

  // The only output, where no error is expected.
  tensor one(const std::string& op, const std::vector<tensor>& inputs, const tensor_spec& output,
             const attributes& attrs = {}) {
    auto r = run(op, inputs, {output}, attrs);
    BOOST_REQUIRE_MESSAGE(r, op << ": " << (r ? "" : r.error().text()));
    return (*r)[0];
  }

  host_device& device() { return device_; }

 private:
  kernel_table table_ = make_host_kernels();
  host_device device_;
};

inline tensor_spec f32(std::initializer_list<std::int64_t> sizes) {
  return {dtype::f32, shape(sizes)};
}

inline tensor random_tensor(std::initializer_list<std::int64_t> sizes, unsigned seed,
                            float low = -2, float high = 2) {
  auto t = tensor::make(f32(sizes));
  std::mt19937 bits(seed);
  std::uniform_real_distribution<float> draw(low, high);
  for (std::int64_t i = 0; i < t.elements(); ++i) t.data<float>()[i] = draw(bits);
  return t;
}

template <class T>
tensor tensor_of(std::initializer_list<T> values, const shape& s, dtype type) {
  return tensor::of<T>(type, s, std::span<const T>(values.begin(), values.size()));
}

inline bool equal_bits(const tensor& a, const tensor& b) {
  return a.spec() == b.spec() &&
         (a.size_bytes() == 0 ||
          std::memcmp(a.bytes().data(), b.bytes().data(), a.size_bytes()) == 0);
}

template <class T = float>
std::vector<T> values_of(const tensor& t) {
  return {t.data<T>(), t.data<T>() + t.elements()};
}

}  // namespace troupe::test
