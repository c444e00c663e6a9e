#pragma once
// Models in the ONNX format, as graphs, and graphs as such models. Link troupe::onnx beside
// troupe::troupe.
//
//   auto model = troupe::load_onnx("no such file.onnx");
//   std::cout << model.error().text() << "\n";

#include "troupe/runtime/onnx/onnx_export.hpp"
#include "troupe/runtime/onnx/onnx_import.hpp"
#include <troupe/data.hpp>
#include <troupe/graph.hpp>
