#pragma once
// Start here: graphs, data, and sessions that train and run them. Beside it stand function.hpp,
// op_library.hpp, onnx.hpp (link troupe::onnx), images.hpp (link troupe::images), inspect.hpp and
// program.hpp (link troupe::program). Errors are values: result<T> is a T or an error that says
// who, what and where.
//
//   auto opened = troupe::session::open({});  // everything in this process
//   if (!opened) throw std::runtime_error(opened.error().text());
//   auto& s = **opened;
//
//   troupe::graph g(s.ops());
//   auto x = troupe::constant(g, troupe::tensor::of({1, 2, 3, 4}, {4, 1}));
//   auto y = troupe::constant(g, troupe::tensor::of({3, 5, 7, 9}, {4, 1}));
//   auto error = troupe::dense(x, 1, "line") - y;
//   auto loss = troupe::reduce_sum(error * error) * 0.25;
//   auto run = s.train(g, loss, {.optimizer = troupe::sgd({.learning_rate = 0.05}), .steps = 500});
//   if (!run) throw std::runtime_error(run.error().text());
//   while (auto event = (*run)->next()) {
//     if (event->type == troupe::training_event::kind::variables)
//       for (const auto& [name, value] : event->variables)
//         std::cout << name << " " << troupe::to_string(value) << "\n";
//     if (event->type == troupe::training_event::kind::failed) throw
//     std::runtime_error(event->text);
//   }

#include <troupe/data.hpp>
#include <troupe/graph.hpp>
#include <troupe/session.hpp>
