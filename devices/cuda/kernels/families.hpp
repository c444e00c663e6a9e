#pragma once
// The families of kernels that make_cuda_kernels() puts together, and what they share. Used in
// devices/cuda/kernels/ only.

#include "troupe/devices/cuda/cuda_kernel.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

namespace troupe::cuda {

void add_element_kernels(cuda_kernel_table& table);
void add_layout_kernels(cuda_kernel_table& table);
void add_reduction_kernels(cuda_kernel_table& table);
void add_row_kernels(cuda_kernel_table& table);
void add_indexing_kernels(cuda_kernel_table& table);
void add_pooling_kernels(cuda_kernel_table& table);
void add_random_kernels(cuda_kernel_table& table);
void add_matmul_kernel(cuda_kernel_table& table);
void add_attention_kernels(cuda_kernel_table& table);
void add_convolution_kernels(cuda_kernel_table& table);

inline error unfit(std::string_view op, std::string_view what, std::span<const tensor_spec> specs) {
  std::string text;
  for (const auto& s : specs) text += (text.empty() ? "" : ", ") + to_string(s);
  return {error_code::usage,
          fmt::format("{} on CUDA: {}, got {}", op, what, text.empty() ? "nothing" : text)};
}
inline result<void> check_ports(std::string_view op, std::span<const tensor_spec> inputs,
                                std::size_t inputs_expected, std::span<const tensor_spec> outputs,
                                std::size_t outputs_expected) {
  if (inputs.size() == inputs_expected && outputs.size() == outputs_expected) return {};
  return error(
      error_code::usage,
      fmt::format("{} on CUDA: takes {} operands and gives {} results, the plan has {} and {}", op,
                  inputs_expected, outputs_expected, inputs.size(), outputs.size()));
}
inline bool is_float(dtype t) noexcept { return t == dtype::f32 || t == dtype::f64; }
inline bool is_number(dtype t) noexcept {
  return is_float(t) || t == dtype::i32 || t == dtype::i64;
}
inline bool is_index(const tensor_spec& s) noexcept {
  return s.type == dtype::i32 || s.type == dtype::i64;
}

// Calls f with a number of the C++ type behind a dtype that was checked before.
template <class F>
result<void> for_float(dtype type, F&& f) {
  return type == dtype::f32 ? f(float{}) : f(double{});
}
template <class F>
result<void> for_number(dtype type, F&& f) {
  switch (type) {
    case dtype::f32: return f(float{});
    case dtype::f64: return f(double{});
    case dtype::i32: return f(std::int32_t{});
    default: return f(std::int64_t{});
  }
}
// A whole number of the element's size.
template <class F>
result<void> for_size(std::size_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}
template <class F>
result<void> for_index(dtype type, F&& f) {
  return type == dtype::i32 ? f(std::int32_t{}) : f(std::int64_t{});
}
template <class T>
const T* as(const std::byte* p) noexcept {
  return reinterpret_cast<const T*>(p);
}
template <class T>
T* as(std::byte* p) noexcept {
  return reinterpret_cast<T*>(p);
}
constexpr std::size_t workspace_aligned(std::size_t bytes) noexcept {
  return (bytes + 255) / 256 * 256;
}

// [outer, n, inner] around an axis, which may count from the end.
inline std::optional<code::along> along_axis(const shape& s, std::int64_t axis) {
  const auto rank = static_cast<std::int64_t>(s.rank());
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return std::nullopt;
  code::along a;
  for (std::int64_t i = 0; i < rank; ++i)
    (i < axis ? a.outer : i == axis ? a.n : a.inner) *= s.size(static_cast<std::size_t>(i));
  return a;
}

class kernel_of_chip : public cuda_kernel {
 protected:
  explicit kernel_of_chip(chip_services& chip) : chip_(chip) {}
  template <class F>
  result<void> elements(const launch_site& at, const F& f, std::int64_t n) {
    return chip_.check_launch(at, code::launch_elements(at.on, f, n));
  }
  template <class F>
  result<void> teams(const launch_site& at, const F& f, std::int64_t n, std::int64_t work) {
    return chip_.check_launch(at, code::launch_teams(at.on, f, n, work));
  }
  chip_services& chip_;
};

// A row of a class that is made from attributes and a chip, and from a text before these where it
// is several ops.
template <class Kernel, class... Before>
void add_row(cuda_kernel_table& table, std::string op, Before... before) {
  table.add(std::move(op),
            [before...](const attributes& attrs,
                        chip_services& chip) -> result<std::unique_ptr<cuda_kernel>> {
              return std::unique_ptr<cuda_kernel>(std::make_unique<Kernel>(before..., attrs, chip));
            });
}

}  // namespace troupe::cuda
