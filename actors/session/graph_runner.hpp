#pragma once
// A graph of which many threads of a program run parts at once: feeds and fetches by name.
//
//   auto r = session.runner(g);
//   r->bind("dense_1/weights", weights);              // fed in runs that do not feed it themselves
//   auto out = r->run({{"x", images}}, {"softmax"});  // from any thread
//   // From the middle on: any value that lies in no branch or loop can be fed, and what only it
//   // needs is not computed.
//   auto part = r->run({{"relu_1", activations}}, {"softmax"});
//
// On the variables of a store (actors/session/variable_store.hpp) runs read these, and change them
// by updates of the graph (runtime/layers/updates.hpp):
//
//   auto store = session.make_store();
//   auto ready = store->initialize(g);
//   auto r = session.runner(g, *store);
//   auto out = r->step({{"x", images}, {"y", labels}}, {"loss"}, {"train"});
//
// RU-1  A run reads one version of all its variables, and what it fetches is of that version.
// RU-2  Its updates are made at once, after all of them are known, or none is: whatever fails (an
//       op, a node, the deadline), the store is as before.
// RU-3  Runs that change variables have the effects of some order, whichever threads they come
//       from: one that reads or changes what another changes begins when that has ended. A run that
//       changes nothing waits for nobody. With update_kind::async gradients are computed from
//       whatever version is there, at once, and each is applied to the newest, one after the other;
//       what is assigned replaces what others have made meanwhile.
//
// Values that a run gives are only to be read, as all tensors that somebody else may have: a
// fetched variable is the store's own. Copy one to change it.
//
// Names are those of ops; "name:1" is output 1 of an op. Each set of feeds and fetches is compiled
// when it is asked for first; the others do not wait for that. Runs of one set that come while
// others are under way run beside them, on the other streams of the session, each by a job of its
// own; the runs of one job are fed in the order in which they came, and overlap as far as credits
// allow. A set has one job if its ops depend on the step, or are placed by hand or on devices.
//
// Threading: run() from any thread, each blocks its own; bind() before the first run. The graph
// must not change after that.
// Ownership: session and graph outlive the runner, and the runner the calls that run.
// Errors: usage (a name, shape or type that is wrong; an input that is needed and not fed; nothing
// fetched; two updates of one variable), not_found (the store lacks a variable), timed_out (the run
// was cancelled), failed (an op, and with it all runs of its job that were under way; the next run
// begins anew).

#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/compile/compile_options.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class variable_store;

struct step_options {
  std::chrono::milliseconds deadline = std::chrono::hours(24 * 365);
  update_kind update = update_kind::sync;  // RU-3
  // Set to the version of the store that was read; 0: the run neither reads nor changes a variable.
  std::uint64_t* version = nullptr;
};

class graph_runner {
 public:
  using feed = std::pair<std::string_view, tensor>;
  static constexpr std::chrono::milliseconds no_deadline = std::chrono::hours(24 * 365);

  virtual ~graph_runner() = default;
  virtual result<void> bind(std::string_view name, tensor value) = 0;
  // The values of `fetches`, in their order. Feeds that no fetch needs are left out.
  virtual result<std::vector<tensor>> run(std::span<const feed> feeds,
                                          std::span<const std::string_view> fetches,
                                          std::chrono::milliseconds deadline = no_deadline) = 0;
  result<std::vector<tensor>> run(std::initializer_list<feed> feeds,
                                  std::initializer_list<std::string_view> fetches,
                                  std::chrono::milliseconds deadline = no_deadline) {
    return run(std::span(feeds.begin(), feeds.size()), std::span(fetches.begin(), fetches.size()),
               deadline);
  }
  // The values of `fetches`, computed before the updates of these names are made. A runner without
  // a store has no updates.
  virtual result<std::vector<tensor>> step(std::span<const feed> feeds,
                                           std::span<const std::string_view> fetches,
                                           std::span<const std::string_view> updates,
                                           const step_options& options = {}) = 0;
  result<std::vector<tensor>> step(std::initializer_list<feed> feeds,
                                   std::initializer_list<std::string_view> fetches,
                                   std::initializer_list<std::string_view> updates,
                                   const step_options& options = {}) {
    return step(std::span(feeds.begin(), feeds.size()), std::span(fetches.begin(), fetches.size()),
                std::span(updates.begin(), updates.size()), options);
  }
  // Whether its runs read and change the variables of this store.
  virtual bool is_on(const variable_store& store) const = 0;
  // Names of the variables that an update changes.
  virtual std::vector<std::string> changed_by(std::string_view update) const = 0;
  // Sets of feeds, fetches and updates that were compiled.
  virtual std::size_t compiled() = 0;
};

}  // namespace troupe
