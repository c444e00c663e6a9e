#pragma once
// Models in files as stages of pipelines. Link troupe::models.
//
//   troupe::topology t;
//   auto rows = troupe::from(t, {troupe::tensor::of({1, 2, 3, 4}, {4})});
//   auto scored = troupe::map(rows, troupe::model("no such file.onnx"));
//   const auto print = [](const troupe::tensor& y) { std::cout << y.elements() << "\n"; };
//   troupe::for_each(scored, print);
//   auto done = t.run_to_end();
//   std::cout << done.error().text() << "\n";

#include "troupe/actors/models/onnx_stage.hpp"
#include <troupe/pipelines.hpp>
