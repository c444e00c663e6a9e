#pragma once
// Ops of one's own: shape rules, gradients and kernels, linked into a program or loaded by nodes.
// apps/own_op is a whole library.
//
//   struct twice_kernel final : troupe::kernel {  // y = 2 x
//     troupe::result<void> prepare(std::span<const troupe::tensor_spec>,
//                                  std::span<const troupe::tensor_spec>) override {
//       return {};
//     }
//     troupe::result<void> run(const troupe::tag&, std::span<const troupe::tensor> in,
//                              std::span<troupe::tensor> out) override {
//       for (std::int64_t i = 0; i < out[0].elements(); ++i)
//         out[0].data<float>()[i] = 2 * in[0].data<float>()[i];
//       return {};
//     }
//   };
//   static const troupe::op_library library{
//       .name = "example", .version = "1", .add = [](auto& ops, auto& kernels) {
//         const auto same_shape = [](const troupe::attributes&, auto in, const troupe::tag*)
//             -> troupe::result<std::vector<troupe::tensor_spec>> { return std::vector{in[0]}; };
//         const auto make = [](const troupe::attributes&, troupe::host_device&)
//             -> troupe::result<std::unique_ptr<troupe::kernel>> {
//           return std::unique_ptr<troupe::kernel>(std::make_unique<twice_kernel>());
//         };
//         ops.add("twice", {.inputs = 1, .shapes = same_shape});
//         kernels.add("twice", {make});
//       }};
//   auto opened = troupe::session::open({.libraries = {&library}});
//   if (!opened) throw std::runtime_error(opened.error().text());
//   troupe::function twice(**opened, [](troupe::value x) {
//     const std::array operands{x};
//     return x.owner->add("twice", operands, {}, "twice", troupe::source_location::current());
//   });
//   auto out = twice({troupe::tensor::of({1, 2}, {2})});
//   if (!out) throw std::runtime_error(out.error().text());
//   std::cout << troupe::to_string((*out)[0]) << "\n";

#include "troupe/devices/host/loops/elementwise_tiles.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include <troupe/graph.hpp>
