#pragma once
// Sessions: alone, or as a client of a cluster. They train graphs, step them, and run parts of them
// from any thread. What trainings are told is here too: optimizers, checkpoints, what happens when
// a node dies; and event files, which TensorBoard shows.
//
//   auto opened = troupe::session::open({.threads = 1});
//   if (!opened) throw std::runtime_error(opened.error().text());
//   troupe::graph g((*opened)->ops());
//   auto x = troupe::input(g, {troupe::dtype::f32, {2}}, "x");
//   auto y = troupe::relu(x);
//   auto steps = (*opened)->compile(g, std::array{y});
//   if (!steps) throw std::runtime_error(steps.error().text());
//   auto t = troupe::tensor::of({-1, 1}, {2});
//   auto out = (*steps)->step(std::array{std::pair<std::string_view, troupe::tensor>{"x", t}});
//   if (!out) throw std::runtime_error(out.error().text());
//   std::cout << troupe::to_string((*out)[0]) << "\n";

#include "troupe/actors/session/event_file.hpp"
#include "troupe/actors/session/fit.hpp"
#include "troupe/actors/session/graph_runner.hpp"
#include "troupe/actors/session/record_file.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/actors/session/variable_store.hpp"
