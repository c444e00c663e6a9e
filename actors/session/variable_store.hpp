#pragma once
// Variables that live on: named tensors with a life of their own, which the graphs of a program
// share. Runs read them, and change them by updates (runtime/layers/updates.hpp).
//
//   auto store = s.make_store();
//   auto ready = store->initialize(g);    // or store->load("model.safetensors")
//   auto r = s.runner(g, *store);
//   while (...) {
//     auto out = r->step({{"x", images}, {"y", labels}}, {"loss"}, {"train"});
//     ...
//   }
//   auto saved = store->save("model.safetensors");
//
// The program writes the loop, and several graphs and runners may use one store: train one,
// evaluate and serve another while it trains. Values are in the program, which sends them to the
// nodes that its graphs name, with each run; so no node that dies takes one away, and a run that
// failed changed nothing.
//
// Ownership: the session outlives the store. A runner on it keeps the variables for itself, too.
// Threading: any thread; each call blocks its own. What is asked after a change sees it.
// Names are those of ops: letters, digits, '_', '-', '.' and '/'.
// Errors: usage (a name, shape, type or file that is wrong; nothing was changed then), not_found (a
// variable or a file that is not there), failed (a disk).

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class store_core;

struct variable_info {
  std::string name;
  tensor_spec spec;
  std::uint64_t version = 0;  // of the store, whose commit made its value
};

// All variables as one commit left them.
struct store_snapshot {
  std::uint64_t version = 0;  // commits before it that changed something
  std::vector<std::pair<std::string, tensor>> variables;  // in order of their names
};

struct load_options {
  // Names of the file, and what they are called here: {{"layer1.weight", "dense_1/weights"}}.
  std::vector<std::pair<std::string, std::string>> names{};
  // Variables that are missing in the file, or that the store does not have, are an error that
  // names them; off: they stay as they are, or are left out whatever they are, and the report says
  // which.
  bool strict = true;
};
struct load_report {
  std::vector<std::string> loaded, missing, unused;
  // Of a checkpoint: the steps of the training that are in it, with which a loop goes on
  // (asynchronous: gradients, of all workers). Of a safetensors file: 0.
  std::uint64_t step = 0;
};
struct save_options {
  // Also what optimizers keep beside the variables, so that a training goes on where it was.
  bool optimizers = false;
};

class variable_store {
 public:
  virtual ~variable_store() = default;

  // Makes those variables of the graph that the store does not have, with the initial values that
  // the graph gives them. usage: one is there with other sizes.
  virtual result<void> initialize(const graph& g, std::uint64_t seed = 1) = 0;
  // Makes it, or replaces its value, whose spec stays; what optimizers keep of it stays, too. The
  // store has a copy.
  virtual result<void> set(std::string_view name, tensor value) = 0;
  // Several at once: all of them, or none.
  virtual result<void> set(std::vector<std::pair<std::string, tensor>> values) = 0;
  // A copy.
  virtual result<tensor> get(std::string_view name) const = 0;
  // The tensors are the store's own, and only to be read.
  virtual store_snapshot snapshot() const = 0;
  virtual std::vector<variable_info> variables() const = 0;
  virtual std::uint64_t version() const = 0;

  // A file of the safetensors format, or the folder of a job's checkpoints, of which the newest
  // whole one is taken (of an asynchronous one, schedules of learning rates then count the
  // gradients of all workers). A store without variables takes all of it. What optimizers keep and
  // the file says nothing of stays.
  virtual result<load_report> load(const std::string& path, const load_options& options = {}) = 0;
  // As safetensors, of one version; whole or not at all.
  virtual result<void> save(const std::string& path, const save_options& options = {}) const = 0;

  // For runners.
  virtual std::shared_ptr<const store_core> core() const = 0;
};

}  // namespace troupe
