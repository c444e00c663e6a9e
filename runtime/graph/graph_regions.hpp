#pragma once
// The regions of a graph: branches and loops, and how a value of one gets into another. A part of
// graph; what programs call is control_flow.hpp.
//
// Region 0 is the whole graph. A branch is a region of its own, a loop has two, its condition and,
// within that, its body. Every value belongs to one region, and so does every op, to the innermost
// one of its operands: what does not depend on a loop's variables is computed outside of the loop,
// once. graph::add() asks import() for each operand, which puts in what brings it there:
//
//   a value of          is wanted in                      comes by
//   a region around     a branch                          branch: alive only if that is taken
//   a loop's condition  its body                          loop_next: alive only if the loop goes on
//   a region around     a loop                            nothing: who takes it keeps it for the
//                                                         run of the loop (sticky_level())
//   a body (or a        the body of the loop that goes    loop_stack
//   branch              back through it
//   in it)
//   any other           -                                 an error: the value is gone when its
//                                                         branch or loop is over
//
// Where a value has to come once for each iteration, an op `after` paces it: pace(). That holds for
// what draws numbers, for what may fail (a loop that makes no iteration does not), and for the
// first values of a loop in a loop.
//
// Sources (constants, inputs, variables) belong to the whole graph, wherever they are written.
//
// RG-1  Each value comes into a region once, however often it is used there.
// RG-2  A loop is open until its body is known; nothing new comes in after that.
// RG-3  Regions that lie in each other have rising levels (runtime/plan/loop_rules.hpp).
//
// Ownership: of the graph. Threading: the graph's.

#include "troupe/runtime/plan/loop_rules.hpp"
#include "troupe/schema/attributes.hpp"
#include "troupe/schema/error.hpp"
#include "troupe/schema/source_location.hpp"
#include "troupe/schema/tensor_spec.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class graph;
struct value;
struct graph_node;

class graph_regions {
 public:
  // Where it lies: "branch of cond()", "loop's body", "loop's condition"; empty: in the whole
  // graph.
  std::string_view place_of(const value& v) const;

  enum class kind : std::uint8_t { whole, branch, condition, body };
  static constexpr std::uint32_t none = 0xFFFF'FFFF;

  struct node_output {
    std::uint32_t node = none, output = 0;
    friend auto operator<=>(const node_output&, const node_output&) = default;
  };
  struct region {
    kind type = kind::whole;
    std::uint32_t parent = 0;
    std::uint16_t level = 0;
    std::uint32_t of = 0;  // the conditional or the loop
    // Of one that gradients are computed in: the region that it goes back through.
    std::uint32_t reverses = none;
    std::uint32_t first_node = 0;  // that the graph had when it began
    // Values from around it, and of the region that it goes back through.
    std::map<node_output, node_output> imported{};
  };
  struct conditional {
    node_output condition;  // in the region around
    // That are taken if it does not hold, and if it does.
    std::uint32_t regions[2] = {none, none};
    // By value of the region around: its "branch".
    std::map<node_output, std::uint32_t> branches{};
    std::uint32_t first_node = 0;
  };
  struct loop_variable {
    std::uint32_t enter = none, next = none, back = none;  // nodes
  };
  struct loop {
    std::uint32_t condition = none, body = none;  // regions
    node_output goes_on{};                        // its condition, once that is known
    std::vector<loop_variable> variables{};
    std::uint64_t iterations_max = 0;  // 0: any number
    std::uint32_t end = none;          // node; none: the loop is open
    std::uint32_t first_node = 0;
    source_location source{};
  };

  explicit graph_regions(graph& g) : g_(g) { regions_.emplace_back(); }

  bool is_trivial() const noexcept { return regions_.size() == 1; }
  std::uint32_t current() const noexcept { return current_; }
  const region& at(std::uint32_t r) const { return regions_[r]; }
  const conditional& conditional_at(std::uint32_t i) const { return conditionals_[i]; }
  const loop& loop_at(std::uint32_t i) const { return loops_[i]; }
  std::uint32_t of(const value& v) const;
  // The innermost loop that the region lies in; none.
  std::uint32_t loop_around(std::uint32_t region) const;
  // The level at or below which a dead token is the last one of its step there; 0: it is in no
  // loop.
  std::uint16_t loop_level(std::uint32_t region) const;
  bool is_around(std::uint32_t outer, std::uint32_t inner) const;  // also if they are the same

  // The value as an op of the current region may take it. Invalid, and the graph has an error:
  // there is no way to it.
  value import(const value& v, const source_location& where);
  // The same value as one of the current region, which lies in a loop if it is not of that already.
  value pace(const value& v, const source_location& where);
  // Whether an op of region `inner` may take a value of region `outer`: there is nothing between
  // them but loops.
  bool reaches(std::uint32_t outer, std::uint32_t inner) const;
  // An op of region `inner` takes a value of region `outer` that it keeps until a token is dead at
  // or below this level; 0: one for each firing.
  std::uint16_t sticky_level(std::uint32_t outer, std::uint32_t inner) const;

  // Ops that are added while it lives belong to `region`.
  class inside {
   public:
    inside(graph_regions& r, std::uint32_t region)
        : r_(r), before_(std::exchange(r.current_, region)) {}
    ~inside() { r_.current_ = before_; }
    inside(const inside&) = delete;
    inside& operator=(const inside&) = delete;

   private:
    graph_regions& r_;
    std::uint32_t before_;
  };

  // --- conditionals
  // The condition is a value of the current region, bool[]; the regions of the new conditional's
  // branches go back through two others, if `reverses` says so.
  std::uint32_t begin_conditional(const value& condition, const std::uint32_t* reverses = nullptr);
  // Outputs 0 and 1: x in the branch that is taken if the condition does not hold, and if it does.
  // The current region is the one around.
  value branch(std::uint32_t conditional, const value& x, const source_location& where);
  value merge(std::uint32_t conditional, const value& otherwise, const value& then,
              const source_location& where);

  // --- loops
  // In the current region. nullopt, and the graph has an error: too many loops lie in each other.
  std::optional<std::uint32_t> begin_loop(std::uint64_t iterations_max,
                                          const source_location& where,
                                          std::uint32_t reverses = none);
  // A variable that the program gives, before the condition is known. The value in the condition's
  // region.
  value add_variable(std::uint32_t loop, const value& initial, const source_location& where);
  void set_condition(std::uint32_t loop, const value& goes_on);
  // What variable k is in the body, and how it leaves the loop.
  value in_body(std::uint32_t loop, std::uint32_t variable, const source_location& where);
  // One value of the body for each given variable. The values that leave the loop, in the same
  // order.
  std::vector<value> end_loop(std::uint32_t loop, std::span<const value> next,
                              std::string_view name, const source_location& where);
  // In the current region, which goes back through the region of `v`. `is_condition`: the current
  // region is the condition of that loop.
  value stack(const value& v, bool is_condition, const source_location& where);
  // "The loop goes on", as a value of its body.
  value goes_on_in_body(std::uint32_t loop, const source_location& where);

  // A value that comes once for each iteration of the loop around the current region, which lies in
  // one.
  value token(const source_location& where);

  // --- graphs that come from a file (runtime/compile/graph_file.hpp)
  struct stored_region {
    kind type = kind::whole;
    std::uint32_t parent = 0, of = 0;
  };
  std::vector<stored_region> stored() const;  // regions 1, 2, ...
  // The regions of a graph that has none yet. An error: they do not lie in each other as regions
  // do.
  result<void> restore(std::span<const stored_region> all);
  // That an op may lie in `region` with these operands, before it is added; and what follows from
  // it, when it was.
  result<void> check_stored(std::uint32_t region, std::string_view type, const attributes& attrs,
                            std::span<const value> inputs) const;
  void adopt(const graph_node& n);
  // Once all ops are there: every loop has ended.
  result<void> check_stored_end() const;

  // The graph has lost its nodes from `nodes` on.
  void cut_back(std::size_t nodes);

 private:
  value to_value(const node_output& n) const;
  static node_output key(const value& v);
  value add(std::uint32_t region, std::string_view type, std::span<const value> inputs,
            std::vector<std::pair<std::string, std::int64_t>> attributes, std::string_view name,
            const source_location& where);
  value bring_down(const value& v, const source_location& where);
  value next(std::uint32_t loop, const value& v, const source_location& where);
  // The region around, or equal to, the current one that goes back through `region`; none.
  std::uint32_t mirror_of(std::uint32_t region) const;
  value refuse(const value& v, const source_location& where);
  // What stack() gives an op: the levels of the bodies that lie between `there` and the region
  // around both; nullopt: `here` does not mirror it.
  struct reversed {
    std::vector<std::int64_t> levels;
    std::int64_t tokens = 0;
  };
  std::optional<reversed> reverse(std::uint32_t there, std::uint32_t here, bool is_condition) const;

  graph& g_;
  std::vector<region> regions_;
  std::vector<conditional> conditionals_;
  std::vector<loop> loops_;
  std::uint32_t current_ = 0;
};

}  // namespace troupe
