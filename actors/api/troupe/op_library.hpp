#pragma once
// Ops of one's own: shape rules, gradients and kernels, linked into a program or loaded by nodes.
// apps/own_op is a whole library.
//
//   static const troupe::op_library library{.name = "example", .version = "1", .add = [](auto&,
//   auto&) {}}; auto opened = troupe::session::open({.libraries = {&library}}); if (!opened) throw
//   std::runtime_error(opened.error().text());

#include "troupe/devices/host/loops/elementwise_tiles.hpp"
#include "troupe/devices/host/loops/vector_math.hpp"
#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/graph/op_library.hpp"
#include <troupe/graph.hpp>
