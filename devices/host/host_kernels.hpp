#pragma once
// The families of kernels that make_host_kernels() puts together, and what they check alike. Used
// in devices/host/ only.

#include "troupe/devices/kernel.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

namespace troupe::host {

void add_arithmetic_kernels(kernel_table& table);
void add_math_kernels(kernel_table& table);
void add_activation_kernels(kernel_table& table);
void add_comparison_kernels(kernel_table& table);
void add_matmul_kernel(kernel_table& table);
void add_convolution_kernels(kernel_table& table);
void add_pooling_kernels(kernel_table& table);
void add_normalisation_kernels(kernel_table& table);
void add_softmax_kernels(kernel_table& table);
void add_attention_kernels(kernel_table& table);
void add_reduction_kernels(kernel_table& table);
void add_layout_kernels(kernel_table& table);
void add_indexing_kernels(kernel_table& table);
void add_loss_kernels(kernel_table& table);
void add_random_kernels(kernel_table& table);
void add_source_kernels(kernel_table& table);
void add_text_kernels(kernel_table& table);

// "op: what: f32[2, 3], f32[4]": shapes that a kernel cannot take. Whoever compiled the plan should
// have seen it.
error unfit(std::string_view op, std::string_view what, std::span<const tensor_spec> specs);

// The number of ports, and f32 (i32 for labels) where a kernel takes nothing else.
result<void> check_ports(std::string_view op, std::span<const tensor_spec> inputs,
                         std::size_t inputs_expected, std::span<const tensor_spec> outputs,
                         std::size_t outputs_expected);

// What a tile should take at least, in ns: a thread that sleeps takes tens of microseconds to come.
inline constexpr double tile_least_ns = 100'000;

// A row whose kernel is a class that is made from attributes, and from a device if it shares its
// work.
template <class Kernel>
kernel_row row_of(bool can_run_in_place = false) {
  return {[](const attributes& attrs,
             [[maybe_unused]] host_device& device) -> result<std::unique_ptr<kernel>> {
            if constexpr (std::is_constructible_v<Kernel, const attributes&, host_device&>)
              return std::unique_ptr<kernel>(std::make_unique<Kernel>(attrs, device));
            else
              return std::unique_ptr<kernel>(std::make_unique<Kernel>(attrs));
          },
          can_run_in_place};
}

}  // namespace troupe::host
