#pragma once
// What the program and tools ask of a topology while it runs: to end, to pause, to work with more
// or fewer replicas.
//
// Threading: any thread, at any time; also when the topology is gone.

#include "troupe/runtime/flow/flow_graph.hpp"
#include "troupe/runtime/flow/replica_control.hpp"
#include "troupe/runtime/flow/stage_replacement.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct topology_wishes {
  // 1: sources end, and what is under way goes on to its end; 2: everything ends at once; 4: the
  // same, and nobody is told of a failure; 8: it ends with a checkpoint, to be resumed.
  std::atomic<std::uint32_t> stop{0};
  std::atomic<bool> pause{false};
  std::atomic<bool> has_begun{false};  // somebody looks at these

  topology_wishes() = default;
  topology_wishes(const topology_wishes&) = delete;
  topology_wishes& operator=(const topology_wishes&) = delete;
  ~topology_wishes() { close(); }
  using replacements = std::vector<std::shared_ptr<stage_replacement>>;
  // Functions that are to take over. Nobody takes them any more after close(): they are gone, and
  // their change says so.
  void replace(replacements r);
  std::vector<replacements> take_replacements();  // in the order in which they were asked for
  void close();

 private:
  struct node {
    replacements what;
    node* next = nullptr;
  };
  static node* closed() noexcept;
  std::atomic<node*> newest_{nullptr};
};

// A function that is to take the place of another one, as a program says it.
struct replacing_function {
  function_contract contract;
  std::function<std::unique_ptr<stage>()> make;
  bool is_copyable = true;
  std::shared_ptr<const lender> borrows{};
  std::uint64_t trial = 0;
  bool items_are_copyable = true;
};
// One for each replica of that stage of `g`, open, with the change that they share. Errors:
// not_found: there is no such stage; usage: it is no function, runs elsewhere, or the new one does
// not take, make or keep what the one before does; else what open() says.
result<topology_wishes::replacements> replacements_for(const flow_graph& g, std::string_view stage,
                                                       replacing_function f);

// Stages by the names that the user knows, and how many of their replicas work.
class replica_controls {
 public:
  explicit replica_controls(const flow_graph& g);

  // Errors: not_found: there is no such stage; usage: its number stays, or is none of its.
  result<void> set(std::string_view stage, std::uint32_t count) const;
  // A replica on `node` works in the place of one that works elsewhere; `nodes`: of each stage of
  // the graph, as process names. Errors: not_found: there is no such stage, or no replica of it on
  // that node that is idle; failed: somebody else moves one; usage: it stays where it is: it has
  // one replica, or keeps what it learns.
  result<void> move(std::string_view stage, std::string_view node,
                    const std::vector<std::string>& nodes) const;
  result<std::uint32_t> working(std::string_view stage) const;
  std::uint32_t most(std::string_view stage) const;  // 0: there is no such stage
  // "decode: 4 of 8 replicas work: more made it no faster", a line each.
  std::string text() const;
  // [{"stage":"decode","working":4,"most":8,"why":"more made it no faster"}]
  std::string json() const;

 private:
  struct named {
    std::string name;
    std::uint32_t replicas = 1;
    std::shared_ptr<replica_control> control;  // null: their number stays
    bool moves = false;                        // whoever has nothing to do may do it
    std::vector<std::uint32_t> instances;      // stages, by replica
  };
  const named* find(std::string_view stage) const;
  error unknown(std::string_view stage) const;

  std::vector<named> stages_;
};

}  // namespace troupe
