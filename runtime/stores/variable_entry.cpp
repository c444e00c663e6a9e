#include "troupe/runtime/stores/variable_entry.hpp"

#include "troupe/devices/host/kernel_arithmetic.hpp"
#include "troupe/runtime/shards/shard_update.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace troupe {
namespace {

// What the next version is written into.
tensor memory_for(const kept_tensor& before) {
  if (before.spare && before.spare.is_unique()) return before.spare;
  return tensor::make(before.now.spec());
}

kept_tensor next_of(const kept_tensor& before) { return {memory_for(before), before.now}; }

std::size_t elements_of(const tensor& t) { return static_cast<std::size_t>(t.elements()); }

optimizer_state first_state(const optimizer_spec& o, const tensor_spec& spec) {
  optimizer_state out{o, 0, {}};
  for (const auto& slot : slots_of(o)) {
    auto t = tensor::make(spec);
    std::fill_n(t.data<float>(), t.elements(), slot.initial);
    out.slots.push_back({std::move(t)});
  }
  return out;
}

// The next state of the optimizer, and the next value.
result<optimizer_state> apply_gradient(kept_tensor& value, const variable_entry& before,
                                       const graph_update& u, const update_operands& with) {
  const auto found = before.states.find(u.state);
  const bool is_first = found == before.states.end();
  if (!is_first && (found->second.optimizer.type != u.optimizer.type ||
                    slot_names(found->second.optimizer) != slot_names(u.optimizer)))
    return error(error_code::usage,
                 fmt::format("the state '{}' of variable '{}' was made by {}, and {} cannot go on "
                             "with it: give one of them another state name",
                             u.state, u.variable.owner->node(u.variable.node).name,
                             found->second.optimizer.type, u.optimizer.type))
        .at(u.source);
  const auto made =
      is_first ? first_state(u.optimizer, before.value.now.spec()) : optimizer_state{};
  const auto& state = is_first ? made : found->second;
  auto o = u.optimizer;
  if (with.rate) o.learning_rate *= static_cast<double>(*with.rate.data<float>());
  optimizer_state next{u.optimizer, state.updates + 1, {}};
  value = next_of(before.value);
  std::vector<stepped> slots;
  for (const auto& s : state.slots) {
    next.slots.push_back(next_of(s));
    slots.push_back({s.now.data<float>(), next.slots.back().now.data<float>()});
  }
  const auto* gradient = with.operand.data<float>();
  update_shard(o, u.schedule, {next.updates, state.updates},
               {before.value.now.data<float>(), value.now.data<float>()}, slots,
               std::array{gradient}, elements_of(with.operand));
  return next;
}

}  // namespace

bool is_made(const update_operands& with) { return !with.when || *with.when.data<bool>(); }

result<variable_entry> updated(const variable_entry& before, const graph_update& u,
                               const update_operands& with) {
  if (!with.operand || with.operand.spec() != before.value.now.spec())
    return error(error_code::usage,
                 fmt::format("variable '{}' is {} in this graph, and {} in the store",
                             u.variable.owner->node(u.variable.node).name,
                             to_string(u.variable.spec()), to_string(before.value.now.spec())))
        .at(u.source);
  const kernel_arithmetic as_in_a_training;  // whichever thread this is
  // What is written anew is not copied: a second handle would keep its spare memory from use.
  variable_entry out;
  switch (u.type) {
    case graph_update::kind::assign:  // a copy: the program may have the tensor, too
      out.value = next_of(before.value);
      std::ranges::copy(with.operand.bytes(), out.value.now.bytes().begin());
      break;
    case graph_update::kind::assign_add: {
      out.value = next_of(before.value);
      const auto *a = before.value.now.data<float>(), *b = with.operand.data<float>();
      std::transform(a, a + elements_of(with.operand), b, out.value.now.data<float>(),
                     [](float x, float y) { return x + y; });
      break;
    }
    case graph_update::kind::apply: {
      auto state = apply_gradient(out.value, before, u, with);
      if (!state) return std::move(state.error());
      out.states.emplace(u.state, std::move(*state));
      break;
    }
    case graph_update::kind::average: {
      out.value = next_of(before.value);
      const auto* sample = with.operand.data<float>();
      average_step({before.value.now.data<float>(), out.value.now.data<float>()},
                   {std::span(&sample, 1)}, elements_of(with.operand),
                   {static_cast<float>(u.average_rate), 1.0F});
      break;
    }
  }
  for (const auto& [name, state] : before.states) out.states.try_emplace(name, state);
  return out;
}

}  // namespace troupe
