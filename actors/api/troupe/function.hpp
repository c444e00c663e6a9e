#pragma once
// A C++ lambda on values as a function on tensors, compiled once for each combination of shapes.
//
//   auto opened = troupe::session::open({});
//   if (!opened) throw std::runtime_error(opened.error().text());
//   troupe::function square(**opened, [](troupe::value x) { return x * x; });
//   auto out = square({troupe::tensor::of({1, 2, 3}, {3})});
//   if (!out) throw std::runtime_error(out.error().text());
//   std::cout << troupe::to_string((*out)[0]) << "\n";

#include "troupe/actors/session/function.hpp"
#include <troupe/data.hpp>
#include <troupe/graph.hpp>
