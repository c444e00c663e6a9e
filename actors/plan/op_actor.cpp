// An op (or a fused group): fires once per tag, when every input of that tag is here and every
// output has a credit.

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/devices/host/fused_kernel.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/loops/finite.hpp"
#include "troupe/devices/memory/buffer_pool.hpp"
#include "troupe/devices/memory/landing_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint32_t firings_a_turn = 256;  // of an op that no edge holds back
constexpr std::int64_t long_ns = 50'000;       // from here on an op lets others have their turn

class op_logic final : public port_logic {
 public:
  using port_logic::port_logic;

 private:
  result<void> open() override {
    uses_ = &part_->uses[actor_];
    if (self_plan().ops.front().type == hand_over_op) return open_hand_over();
    is_forwarding_ = self_plan().ops.size() == 1 && is_forwarding(self_plan().ops.front());
    is_gate_ = is_forwarding_ && self_plan().ops.front().type == pass_if_op &&
               self_plan().inputs.size() == 2;
    is_relay_ = self_plan().ops.front().type == relay_op;
    on_nan_ = part_->job_plan->on_nan;
    inputs_.resize(ports_.in.size());
    pace_ = pace();
    if (is_forwarding_ != self_plan().forwards_input && !self_plan().buffers.empty())
      return at_line(
          error(error_code::usage,
                fmt::format("op '{}' of type '{}' and the plan disagree on whether it forwards its "
                            "input",
                            self_plan().ops.front().name, self_plan().ops.front().type)),
          self_plan().ops.front());
    find_buffers();
    if (is_forwarding_) {
      outputs_.resize(1);
      return {};
    }
    const auto types = result_types();
    if (!types) return types.error();
    std::vector<fused_step> steps;
    for (const auto& op : self_plan().ops) {
      const auto* kernels = part_->kernels->find(op.type);
      const auto* row = part_->ops->find(op.type);
      if (kernels == nullptr || row == nullptr)
        return at_line(error(error_code::usage,
                             fmt::format("op '{}' of type '{}' is unknown here", op.name, op.type)),
                       op);
      auto made = kernels->make(op.attrs, *part_->device);
      if (!made) return at_line(made.error(), op);
      if (*made == nullptr)
        return at_line(
            error(error_code::failed,
                  fmt::format("op '{}' of type '{}': no kernel was made for it", op.name, op.type)),
            op);
      steps.push_back({std::move(*made), op.operands, (*types)[steps.size()]});
      is_source_ = is_source_ || row->is_source;
      is_users_ = is_users_ || row->library != nullptr;
      is_timed_ = is_timed_ || is_users_ || (row->is_source && is_reader(op.attrs));
      is_constant_ = self_plan().ops.size() == 1 && row->is_constant;
      if (is_constant_ && !uses_->empty())
        return at_line(
            error(error_code::usage,
                  fmt::format("op '{}' is a constant with memory of its own: it cannot use a "
                              "shared buffer",
                              op.name)),
            op);
      if (self_plan().in_place >= 0 && (!row->is_elementwise || row->library != nullptr))
        return at_line(
            error(error_code::usage,
                  fmt::format("op '{}' of type '{}' cannot overwrite its input", op.name, op.type)),
            op);
    }
    if (steps.size() == 1) {
      kernel_ = std::move(steps.front().op);
    } else {
      auto fused = make_fused_kernel(std::move(steps), part_->device->team());
      if (!fused) return at_line(fused.error(), self_plan().ops.front());
      kernel_ = std::move(*fused);
    }
    for (std::size_t port = 0; port < self_plan().outputs.size(); ++port) {
      std::size_t buffers = 1;
      for (auto e : self_plan().outputs[port])
        buffers = std::max<std::size_t>(buffers, 1 + part_->job_plan->edges[e].credits);
      if (buffer_of(self_plan(), port) >= 0) buffers = 0;
      pools_.emplace_back(self_plan().output_specs[port].size_bytes(), buffers);
    }
    input_specs_.resize(ports_.in.size());
    outputs_.resize(pools_.size());
    return {};
  }

  // Of output 0 of every op. They are those of every step, while shapes may differ.
  result<std::vector<dtype>> result_types() const {
    std::vector<tensor_spec> ports;
    for (const auto e : self_plan().inputs) {
      const auto from = part_->job_plan->edges[e].from;
      ports.push_back(part_->job_plan->actors[from.actor].output_specs[from.port]);
    }
    auto results = results_of(ports, nullptr);
    if (!results) return std::move(results.error());
    std::vector<dtype> types;
    for (const auto& r : *results) types.push_back(r.empty() ? dtype::f32 : r.front().type);
    return types;
  }

  // All outputs of every op, by the shape rules.
  result<std::vector<std::vector<tensor_spec>>> results_of(std::span<const tensor_spec> ports,
                                                           const tag* t) const {
    std::vector<std::vector<tensor_spec>> results;
    for (const auto& op : self_plan().ops) {
      const auto* row = part_->ops->find(op.type);
      if (row == nullptr)
        return at_line(error(error_code::usage,
                             fmt::format("op '{}' of type '{}' is unknown here", op.name, op.type)),
                       op);
      std::vector<tensor_spec> operands;
      for (auto o : op.operands)
        operands.push_back(o >= 0 ? ports[static_cast<std::size_t>(o)]
                                  : results[static_cast<std::size_t>(-1 - o)].front());
      auto shapes = row->shapes(op.attrs, operands, t);
      if (!shapes) return at_line(shapes.error(), op);
      results.push_back(std::move(*shapes));
    }
    return results;
  }

  // What this node keeps of a variable, once.
  result<void> open_hand_over() {
    const auto variable = self_plan().ops.front().attrs.text("variable");
    const auto at = part_->handed.find(variable);
    const auto ports = self_plan().outputs.size();  // values, then slots
    const auto* best = at == part_->handed.end() || ports == 0
                           ? nullptr
                           : newest(*at->second, ports - 1, part_->handed_version(variable));
    if (best == nullptr)
      return error(error_code::failed,
                   fmt::format("variable '{}' is to be handed over, but this node has no copy of "
                               "it",
                               variable));
    handed_ = {best->values};
    handed_.insert(handed_.end(), best->state.begin(), best->state.end());
    at->second->slots.clear();  // nobody else looks at this copy
    outputs_.resize(ports);
    return uses_->empty() ? result<void>{}
                          : error(error_code::usage,
                                  "a variable that is handed over has memory of "
                                  "its own: it cannot use a shared buffer");
  }

  // Of version `wanted`, or (none) the newest one, with this many slots of its optimizer.
  static const kept_version* newest(const kept_shard& k, std::size_t slots,
                                    std::optional<std::uint64_t> wanted) {
    const kept_version* best = nullptr;
    for (const auto& s : k.slots)
      if (!k.is_torn && s.version && s.is_whole(slots) &&
          (wanted ? s.version == wanted : best == nullptr || *best->version < *s.version))
        best = &s;
    return best;
  }

  void on_mark(const mark_cut& m) override { mark_ = m.mark; }

  void advance() override {
    for (std::uint32_t n = 0;
         is_started_ && !is_done() && !has_failed_ && !must_wait() && !must_wait_for_buffer();
         ++n) {
      // Nothing may hold back the end, nor what may take long the others of its stream.
      if (n == firings_a_turn || (n > 0 && is_long_)) return come_back();
      fire();
    }
  }

  void fire() {
    busy_mark busy(*this);
    tag t{.step = fired_};
    if (!ports_.in.empty()) t = ports_.in[pace_].queue.front().t;
    for (std::uint32_t i = 0; i < ports_.in.size(); ++i) {
      auto& head = ports_.in[i].queue.front();
      t.mark = std::max(t.mark, head.t.mark);
      if (head.t.dead != 0 && (t.dead == 0 || head.t.dead < t.dead)) t.dead = head.t.dead;
      if (is_sticky(i)) {
        inputs_[i] = head.value;
        continue;
      }
      expects(head.t == t, "PO-2: all inputs of a firing have one tag");
      inputs_[i] = std::move(head.value);
    }
    if (mark_ != 0) t.mark = std::exchange(mark_, 0);
    if (is_gate_ && t.dead == 0 && *std::as_const(inputs_[1]).data<boolean>() == boolean{})
      t.dead = 1;
    if (auto ran = t.dead == 0 ? run(t) : pass_on(t); !ran)
      return fail(at_line(std::move(ran.error()), self_plan().ops.front()));
    for (std::uint32_t port = 0; port < outputs_.size(); ++port) {
      emit(port, t, std::move(outputs_[port]));
      outputs_[port] = tensor();  // of one that nobody takes
    }
    for (std::uint32_t i = 0; i < ports_.in.size(); ++i) {
      inputs_[i] = tensor();
      if (keeps(i, t)) continue;
      ports_.in[i].queue.pop();
      give_back(i);
    }
    release_buffers(t);
    update_queue();
    count_firing(t);
  }

  // A dead token: nothing is computed, but buffers have their turn.
  result<void> pass_on(const tag& t) {
    if (is_forwarding_ && input_buffers_[0] != nullptr)
      input_buffers_[0]->add_readers(t.step, static_cast<std::uint32_t>(outlets_of_[0].size()));
    for (const auto& u : *uses_)
      part_->buffers[u.buffer]->begin_nothing(
          u.use, t.step, static_cast<std::uint32_t>(outlets_of_[u.port].size()));
    return {};
  }

  result<void> run(const tag& t) {
    if (is_forwarding_) {
      outputs_[0] = is_relay_ ? inputs_[0].with_own_count() : inputs_[0];
      if (input_buffers_[0] != nullptr)
        input_buffers_[0]->add_readers(t.step, static_cast<std::uint32_t>(outlets_of_[0].size()));
      return {};
    }
    if (!handed_.empty()) {
      outputs_ = std::exchange(handed_, {});
      return {};
    }
    if (is_constant_ && is_prepared_) {
      std::ranges::copy(constants_, outputs_.begin());
      return {};
    }
    bool is_new = is_source_ || !is_prepared_;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (is_new || inputs_[i].spec() != input_specs_[i]) {
        input_specs_[i] = inputs_[i].spec();
        is_new = true;
      }
    if (is_new)
      if (auto prepared = prepare(t); !prepared) return prepared;
    for (std::size_t port = 0; port < outputs_.size(); ++port)
      if (buffer_of(self_plan(), port) < 0) outputs_[port] = buffer_for(port);
    for (const auto& u : *uses_)
      outputs_[u.port] = part_->buffers[u.buffer]->begin(
          u.use, t.step, static_cast<std::uint32_t>(outlets_of_[u.port].size()),
          output_specs_[u.port]);
    const bool came_in = on_nan_ != nan_policy::ignore && self_plan().in_place >= 0 &&
                         first_not_finite(inputs_[static_cast<std::size_t>(self_plan().in_place)]);
    const auto began_ns = is_timed_ ? lane_.now_ns() : 0;
    auto ran = kernel_->run(t, inputs_, outputs_);
    if (is_timed_) {
      const auto took_ns = lane_.now_ns() - began_ns;
      is_long_ = took_ns > long_ns;
      record_.count_kernel(took_ns);
    }
    if (is_users_ && ran) ran = check_made();
    if (is_constant_) constants_ = outputs_;
    if (on_nan_ != nan_policy::ignore && ran) return look_for_nan(t, came_in);
    return ran;
  }

  // --- NaN and infinities ---

  // `came_in`: in what the op has written over.
  result<void> look_for_nan(const tag& t, bool came_in) {
    for (std::size_t port = 0; port < outputs_.size(); ++port)
      if (const auto at = first_not_finite(outputs_[port]))
        return on_not_finite(t, outputs_[port], *at, came_in);
    return {};
  }

  // The first op is the one that takes none: or one that takes it from what the program feeds, a
  // variable or a reader.
  result<void> on_not_finite(const tag& t, const tensor& made, std::int64_t element, bool came_in) {
    if (is_constant_) return {};  // the user's own
    std::optional<std::size_t> source;
    if (came_in) source = static_cast<std::size_t>(self_plan().in_place);
    for (std::size_t i = 0; i < inputs_.size() && !source; ++i)
      if (static_cast<std::int32_t>(i) != self_plan().in_place && first_not_finite(inputs_[i]))
        source = i;
    if (source && is_of_an_op(*source)) return {};  // which has said so
    auto what = fmt::format("it gives {}, element {} of {}", not_finite_text(made, element),
                            element, to_string(made.spec()));
    if (self_plan().ops.size() > 1)
      what = fmt::format("{}; it is a group of {}", what, names_of_group());
    what += source ? fmt::format("; so does its input '{}'",
                                 part_->job_plan->actors[producer_of(*source)].name)
                   : "; its inputs are finite";
    if (on_nan_ == nan_policy::stop) return error(error_code::failed, std::move(what));
    if (on_nan_ == nan_policy::skip) what += "; this worker's gradients of the step are left out";
    if (!std::exchange(has_noted_, true))
      note(t.step,
           at_line(error(error_code::failed, std::move(what)), self_plan().ops.front()).text());
    return {};
  }

  std::uint32_t producer_of(std::size_t input) const {
    return part_->job_plan->edges[self_plan().inputs[input]].from.actor;
  }
  bool is_of_an_op(std::size_t input) const {
    const auto& from = part_->job_plan->actors[producer_of(input)];
    if (from.kind != actor_kind::op) return false;
    const auto* row = part_->ops->find(from.ops.front().type);
    return row == nullptr || !(row->is_source || from.ops.front().type == "read");
  }
  std::string names_of_group() const {
    constexpr std::size_t names_max = 8;
    std::string text;
    const auto& ops = self_plan().ops;
    for (std::size_t i = 0; i < std::min(ops.size(), names_max); ++i)
      text += fmt::format("{}'{}'", i == 0 ? "" : ", ", ops[i].name);
    return ops.size() > names_max ? fmt::format("{} and {} more", text, ops.size() - names_max)
                                  : text;
  }

  // --- memory that the plan shares (runtime/firing/shared_buffer.hpp) ---

  void wire_more(const std::shared_ptr<const part_handles>& handles) override {
    handles_ = handles;
    for (std::uint32_t port = 0; port < self_plan().outputs.size(); ++port) {
      const auto at = handles->landings.find({actor_, port});
      landings_.push_back(at != handles->landings.end() ? at->second : nullptr);
    }
  }

  // What a device copies is written where it copies from (CY-4).
  tensor buffer_for(std::size_t port) {
    if (landings_[port] != nullptr)
      if (auto t = landings_[port]->take(output_specs_[port])) return t;
    return pools_[port].take(output_specs_[port]);
  }

  void find_buffers() {
    for (const auto e : self_plan().inputs) {
      const auto from = part_->job_plan->edges[e].from;
      const auto b = buffer_of(part_->job_plan->actors[from.actor], from.port);
      input_buffers_.push_back(b < 0 ? nullptr : part_->buffers[static_cast<std::size_t>(b)].get());
    }
  }

  bool must_wait_for_buffer() {
    if (uses_->empty()) return false;
    const auto step = ports_.in.empty() ? fired_ : ports_.in.front().queue.front().t.step;
    for (const auto& u : *uses_)
      if (auto& b = *part_->buffers[u.buffer]; !b.try_begin(u.use, step)) {
        record_.enter_buffer_wait(reader_of(u, step));
        return true;
      }
    return false;
  }

  // One who is yet to read what stands in the buffer; its writer, where that has not come so far.
  std::uint32_t reader_of(const buffer_use& u, std::uint64_t step) const {
    const auto& p = *part_->job_plan;
    const auto writer = part_->buffers[u.buffer]->actor_before(u.use);
    // Firings that the step before has.
    const auto due =
        u.use > 0 ? step + 1 : step + 1 - std::min<std::uint64_t>(step + 1, p.steps_in_flight);
    const auto is_behind = [&](std::uint32_t a) {
      return part_->records[a]->steps.load(std::memory_order_relaxed) < due;
    };
    std::vector<std::uint32_t> open{writer};
    while (!open.empty()) {
      const auto a = open.back();
      open.pop_back();
      if (is_behind(a) && a != actor_) return a;
      for (std::size_t port = 0; port < p.actors[a].buffers.size(); ++port)
        if (p.actors[a].buffers[port] == static_cast<std::int32_t>(u.buffer) &&
            (a == writer || p.actors[a].forwards_input))
          for (const auto e : p.actors[a].outputs[port]) open.push_back(p.edges[e].to.actor);
    }
    return writer;
  }

  // What was taken may be written over; so may at once what nobody takes.
  void release_buffers(const tag& t) {
    for (std::size_t i = 0; i < input_buffers_.size(); ++i)
      if (input_buffers_[i] != nullptr && static_cast<std::int32_t>(i) != self_plan().in_place)
        wake(input_buffers_[i]->release(t.step));
    for (const auto& u : *uses_)
      if (outlets_of_[u.port].empty()) wake(part_->buffers[u.buffer]->end_turn(t.step));
  }
  void wake(std::optional<std::uint32_t> actor) {
    if (actor && *actor == actor_) return come_back();
    if (actor) tell(self_.context(), handles_->actors[*actor], start_firing{});
  }

  // Of a kernel that does not ship with Troupe: consumers take what its rule said.
  result<void> check_made() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (!outputs_[i] || outputs_[i].spec() != output_specs_[i])
        return error(error_code::failed,
                     fmt::format("its kernel made {} as output {}, which is {}",
                                 outputs_[i] ? to_string(outputs_[i].spec()) : "nothing", i,
                                 to_string(output_specs_[i])));
    return {};
  }

  // Exact output shapes for these inputs, by the same rules that gave the bounds at compile time.
  result<void> prepare(const tag& t) {
    auto results = results_of(input_specs_, &t);
    if (!results) return std::move(results.error());
    if (is_source_ && is_prepared_ && results->back() == output_specs_) return {};
    output_specs_ = std::move(results->back());
    is_prepared_ = true;
    return kernel_->prepare(input_specs_, output_specs_);
  }

  static error at_line(error e, const planned_op& op) {
    if (!op.source.file.empty()) e.at(op.source.file, op.source.line);
    return e;
  }

  bool is_forwarding(const planned_op& op) const {
    const auto* row = part_->ops->find(op.type);
    return row != nullptr && row->is_forwarding;
  }

  std::unique_ptr<kernel> kernel_;
  bool is_forwarding_ = false;
  bool is_relay_ = false;
  bool is_gate_ = false;  // hands on where its condition holds
  nan_policy on_nan_ = nan_policy::ignore;
  bool has_noted_ = false;  // that there was one
  bool is_source_ = false;
  bool is_users_ = false;  // one of its ops is of a library
  bool is_timed_ = false;  // its cost is measured: the planner cannot know it
  bool is_long_ = false;   // its last kernel was
  bool is_constant_ = false;
  bool is_prepared_ = false;
  std::uint32_t pace_ = 0;  // an input that is not sticky
  std::uint32_t mark_ = 0;  // for the next firing
  std::vector<tensor> inputs_, outputs_;
  std::vector<tensor> constants_;  // of one whose row says so: what its first firing gave
  std::vector<tensor> handed_;     // values and slots, until they are sent
  std::vector<tensor_spec> input_specs_, output_specs_;
  std::vector<buffer_pool> pools_;
  std::vector<std::shared_ptr<landing_pool>> landings_;  // by port; null: no device copies it
  std::shared_ptr<const part_handles> handles_;          // of whom it wakes
  const std::vector<buffer_use>* uses_ = nullptr;        // of shared memory, by its outputs
  // By input: where it stands; null: in memory of its producer's own.
  std::vector<shared_buffer*> input_buffers_;
};

}  // namespace

std::unique_ptr<port_logic> make_op_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                          std::uint32_t a) {
  return std::make_unique<op_logic>(s, std::move(p), a);
}

}  // namespace troupe
