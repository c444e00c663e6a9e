#pragma once
// A function on tensors that is a graph: traced from a C++ function on values, compiled once for
// each combination of shapes and element types, stepped when it is called.
//
//   function layer(s, [](value x, value w, value b) { return relu(matmul(x, w) + b); });
//   auto y = layer({x, w, b});                    // result<std::vector<tensor>>
//
// The lambda runs when new shapes come, not at every call: what it does besides adding ops happens
// then only, and what it captures is a constant of the graph. A call on values adds the same ops to
// their graph.
//
// Ownership: the session outlives the function. Threading: one thread.
// Errors: usage (what the graph says, with the user's line; a wrong number of operands; a lambda
// that makes variables or inputs of its own: pass them), failed (a step).

#include "troupe/actors/session/session.hpp"

#include <concepts>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class function {
 public:
  using body = std::function<std::vector<value>(std::span<const value>)>;

  function(session& s, std::size_t operands, body traced,
           compile_options options = {.name = "function"})
      : session_(s), operands_(operands), body_(std::move(traced)), options_(std::move(options)) {}
  // From a lambda on up to 8 values that returns a value, or a vector of them.
  template <class Lambda>
    requires(!std::same_as<std::remove_cvref_t<Lambda>, function>)
  function(session& s, Lambda lambda, compile_options options = {.name = "function"})
      : function(s, arity<Lambda>(),
                 erase(std::move(lambda), std::make_index_sequence<arity<Lambda>()>()),
                 std::move(options)) {}

  // Runs the graph for these shapes, which is made if it is not there yet.
  result<std::vector<tensor>> operator()(std::span<const tensor> operands,
                                         source_location where = source_location::current());
  result<std::vector<tensor>> operator()(std::initializer_list<tensor> operands,
                                         source_location where = source_location::current()) {
    return (*this)(std::span(operands.begin(), operands.size()), where);
  }
  // Adds its ops to the graph of the operands; another number of them than the lambda takes is an
  // error of that graph.
  std::vector<value> operator()(std::span<const value> operands,
                                source_location where = source_location::current()) const;

  // Graphs that were made, one for each combination of shapes and types.
  std::size_t traces() const noexcept { return graphs_.size(); }

 private:
  struct compiled {
    std::unique_ptr<stepper> steps;
    std::vector<std::string> inputs;
  };
  result<compiled> trace(std::span<const tensor> operands, const source_location& where) const;

  // The number of values that a lambda takes: the first that fits.
  template <class Lambda, std::size_t N = 0>
  static consteval std::size_t arity() {
    static_assert(N <= 8, "a function takes up to 8 values");
    if constexpr ([]<std::size_t... I>(std::index_sequence<I...>) {
                    return std::invocable<Lambda&, decltype((void)I, value{})...>;
                  }(std::make_index_sequence<N>()))
      return N;
    else
      return arity<Lambda, N + 1>();
  }
  template <class Lambda, std::size_t... I>
  static body erase(Lambda lambda, std::index_sequence<I...>) {
    return [lambda = std::move(lambda)](std::span<const value> x) mutable -> std::vector<value> {
      if constexpr (std::convertible_to<decltype(lambda(x[I]...)), value>)
        return {lambda(x[I]...)};
      else
        return lambda(x[I]...);
    };
  }

  session& session_;
  std::size_t operands_;
  body body_;
  compile_options options_;
  std::map<std::string, compiled> graphs_;  // by the specs of the operands
};

}  // namespace troupe
