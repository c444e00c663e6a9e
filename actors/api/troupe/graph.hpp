#pragma once
// What graphs are made of: values, the functions that add ops, operators, branches and loops,
// layers, optimizers, gradients; and eager, which computes the same functions at once.
//
//   auto opened = troupe::session::open({});
//   if (!opened) throw std::runtime_error(opened.error().text());
//   auto e = (*opened)->eager();
//   auto x = e->value_of(troupe::tensor::of({-1, 0, 2}, {3}));
//   auto y = troupe::relu(x) * 2 + 1;
//   auto dx = troupe::gradients(*e, troupe::reduce_sum(y), std::array{x});
//   std::cout << troupe::to_string(*e->read(y)) << troupe::to_string(*e->read(dx[0])) << "\n";

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/collectives.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/layers/clipping.hpp"
#include "troupe/runtime/layers/eager.hpp"
#include "troupe/runtime/layers/layers.hpp"
#include "troupe/runtime/layers/metrics.hpp"
#include "troupe/runtime/layers/updates.hpp"
#include "troupe/runtime/plan/optimizer.hpp"
