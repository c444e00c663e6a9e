#pragma once
// Looking inside: what the compiler makes of a graph, graphs as files, and what a running cluster
// does.
//
//   auto opened = troupe::session::open({});
//   if (!opened) throw std::runtime_error(opened.error().text());
//   troupe::graph g((*opened)->ops());
//   auto x = troupe::input(g, {troupe::dtype::f32, {2}}, "x");
//   auto explained = troupe::explain(g, std::array{troupe::relu(x)}, {});
//   if (!explained) throw std::runtime_error(explained.error().text());
//   std::cout << *explained << "\n";

#include "troupe/actors/inspect/inspect.hpp"
#include "troupe/runtime/compile/explain.hpp"
#include "troupe/runtime/compile/graph_file.hpp"
