#pragma once
// Pipelines: sources, stages of your own, and ends, joined into a topology. Link troupe::pipelines
// (and troupe::program for topology(argc, argv)).
//
//   troupe::topology t;
//   auto numbers = troupe::from(t, {1, 2, 3, 4, 5, 6});
//   auto squares = troupe::map(numbers, [](int x) { return x * x; }, {.replicas = 2});
//   auto even = troupe::filter(squares, [](int x) { return x % 2 == 0; });
//   troupe::for_each(even, [](int x) { std::cout << x << "\n"; });
//   auto done = t.run_to_end();
//   if (!done) throw std::runtime_error(done.error().text());

#include "troupe/actors/flow/feed_training.hpp"
#include "troupe/actors/flow/model_stage.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/runtime/flow/drain.hpp"
#include "troupe/runtime/flow/file_stages.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/resource.hpp"
#include "troupe/runtime/flow/sample_stages.hpp"
#include "troupe/runtime/flow/typed_sources.hpp"
