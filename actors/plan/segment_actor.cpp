// A segment: ops of one device, enqueued on its compute stream one after the other. Fires once per
// tag, as an op does, and passes its results on while their kernels are in the queue.
//
//   tensor_ready, credit   as of an op (actors/plan/port_actor.hpp)
//
// SG-1  What it takes from another stream is waited for by the compute stream, never by a thread;
//       what it hands to one carries its event.
// SG-2  Values inside are in the scratch memory of the compute stream (device_streams.hpp, DS-3),
//       and outputs in buffers of their own, as many as credits and one.
// SG-3  The second firing with the same addresses and shapes is captured, and each one after it is
//       a replay: the bits are the same.
// SG-4  A failure names the op and its line: the kernel that cannot be enqueued, or what the stream
//       knows of one that failed later.
// Threading: the device's worker.

#include "troupe/actors/plan/device_failures.hpp"
#include "troupe/actors/plan/device_streams.hpp"
#include "troupe/actors/plan/port_actor.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint32_t firings_a_turn = 64;  // of one that no edge holds back
// Sets of addresses; a port has as many buffers as credits and one, which come in turn.
constexpr std::size_t captured_max = 16;
constexpr std::size_t known_shapes_max = 4;
constexpr std::size_t kernels_worth_capturing = 2;

class segment_logic final : public port_logic {
 public:
  using port_logic::port_logic;
  ~segment_logic() override {
    // They may be at work, with what they have in the device's memory.
    if (kernels_.empty() || compute_ == nullptr) return;
    streams_->keep_behind(
        *compute_, std::make_shared<std::pair<std::vector<replayable>, std::vector<kernel_here>>>(
                       std::move(captured_), std::move(kernels_)));
  }

 private:
  struct kernel_here {
    std::unique_ptr<device_kernel> op;
    std::string_view name;
    std::vector<tensor_spec> inputs, outputs;  // of this firing
    std::vector<std::span<const std::byte>> from;
    std::vector<std::span<std::byte>> to;
  };
  // One set of addresses.
  struct replayable {
    std::vector<const std::byte*> addresses;
    std::uint64_t shapes = 0, scratch = 0;
    std::unique_ptr<captured_step> step;  // null: seen once
  };

  const planned_actor& segment() const { return self_plan(); }

  result<void> open() override {
    streams_ = part_->devices.at(device_of(segment().stream));
    if (auto ok = streams_->open(part_->part, *part_->lanes); !ok) return ok;
    compute_ = streams_->lane(stream_kind::compute);
    name_ = streams_->keep_name(segment().name);
    for (std::size_t k = 0; k < segment().kernels.size(); ++k)
      if (auto ok = make_kernel(k); !ok) return ok;
    for (std::size_t port = 0; port < segment().outputs.size(); ++port) {
      std::size_t buffers = 1;
      for (const auto e : segment().outputs[port]) {
        buffers = std::max<std::size_t>(buffers, 1 + part_->job_plan->edges[e].credits);
        const auto& to = part_->job_plan->actors[part_->job_plan->edges[e].to.actor];
        records_event_ =
            records_event_ || to.kind != actor_kind::op || to.stream != segment().stream;
      }
      pools_.emplace_back(segment().output_specs[port].size_bytes(), buffers, compute_->stream(),
                          compute_, segment().name);
    }
    inputs_.resize(ports_.in.size());
    input_specs_.resize(ports_.in.size());
    outputs_.resize(pools_.size());
    for (const auto& k : segment().kernels)
      for (const auto& r : k.results) values_.push_back({r, {}});
    return {};
  }

  result<void> make_kernel(std::size_t k) {
    const auto ops = ops_of(segment(), k);
    std::vector<kernel_step> steps;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      steps.push_back({ops[i].type, ops[i].attrs, ops[i].operands, dtype::f32});
      const auto* row = part_->ops->find(ops[i].type);
      if (row == nullptr)
        return at_line(error(error_code::usage, fmt::format("op '{}' of type '{}' is unknown here",
                                                            ops[i].name, ops[i].type)),
                       k);
      depends_on_step_ = depends_on_step_ || row->depends_on_step;
    }
    // Types of results inside of a group: by the shape rules, at the bounds.
    const auto bounds = results_of(k, bounds_of_operands(k), nullptr);
    if (!bounds) return bounds.error();
    for (std::size_t i = 0; i < steps.size(); ++i)
      steps[i].type = (*bounds)[i].empty() ? dtype::f32 : (*bounds)[i].front().type;
    auto made = streams_->backend().make_kernel(steps);
    if (!made) return at_line(made.error(), k);
    kernel_here here;
    here.op = std::move(*made);
    here.name = streams_->keep_name(name_of_kernel(segment(), k));
    kernels_.push_back(std::move(here));
    return {};
  }

  std::vector<tensor_spec> bounds_of_operands(std::size_t k) const {
    std::vector<tensor_spec> all, operands;
    for (const auto& kernel : segment().kernels)
      all.insert(all.end(), kernel.results.begin(), kernel.results.end());
    for (const auto o : segment().kernels[k].operands)
      operands.push_back(
          o >= 0 ? part_->job_plan->edges[segment().inputs[static_cast<std::size_t>(o)]].spec
                 : all[static_cast<std::size_t>(-1 - o)]);
    return operands;
  }

  // All outputs of every op of a kernel, by the shape rules.
  result<std::vector<std::vector<tensor_spec>>> results_of(std::size_t k,
                                                           const std::vector<tensor_spec>& operands,
                                                           const tag* t) const {
    std::vector<std::vector<tensor_spec>> results;
    for (const auto& op : ops_of(segment(), k)) {
      std::vector<tensor_spec> of_op;
      for (const auto o : op.operands)
        of_op.push_back(o >= 0 ? operands[static_cast<std::size_t>(o)]
                               : results[static_cast<std::size_t>(-1 - o)].front());
      auto shapes = part_->ops->find(op.type)->shapes(op.attrs, of_op, t);
      if (!shapes) return at_line(shapes.error(), k);
      results.push_back(std::move(*shapes));
    }
    return results;
  }

  void on_mark(const mark_cut& m) override { mark_ = m.mark; }

  void advance() override {
    for (std::uint32_t n = 0; is_started_ && !is_done() && !has_failed_ && !must_wait(); ++n) {
      if (n == firings_a_turn) return come_back();  // nothing may hold back the end
      fire();
    }
  }

  void fire() {
    busy_mark busy(*this);
    tag t{.step = fired_};
    if (!ports_.in.empty()) t = ports_.in.front().queue.front().t;
    for (std::uint32_t i = 0; i < ports_.in.size(); ++i) {
      auto& head = ports_.in[i].queue.front();
      expects(head.t == t, "PO-2: all inputs of a firing have one tag");
      t.mark = std::max(t.mark, head.t.mark);
      if (head.t.dead != 0 && (t.dead == 0 || head.t.dead < t.dead)) t.dead = head.t.dead;
      inputs_[i] = std::move(head.value);
    }
    if (mark_ != 0) t.mark = std::exchange(mark_, 0);
    if (t.dead == 0)
      if (auto ran = run(t); !ran) {
        if (!hand_over()) {  // of what may have been enqueued before
          inputs_.insert(inputs_.end(), std::move_iterator(outputs_.begin()),
                         std::move_iterator(outputs_.end()));
          streams_->keep_behind(*compute_, std::move(inputs_));
        }
        return fail_by_cause(*this, ran.error(), *compute_, *part_->lanes);
      }
    for (std::uint32_t port = 0; port < outputs_.size(); ++port)
      emit(port, t, std::exchange(outputs_[port], tensor()));
    for (std::uint32_t i = 0; i < ports_.in.size(); ++i) {
      inputs_[i] = tensor();
      ports_.in[i].queue.pop();
      give_back(i);
    }
    update_queue();
    count_firing(t);
  }

  result<void> run(const tag& t) {
    compute_->label(subject(), t.step);
    if (auto ok = find_shapes(t); !ok) return ok;
    if (auto ok = take_outputs(); !ok) return ok;
    if (auto ok = wait_for_inputs(); !ok) return at_segment(ok.error());
    const auto scratch = streams_->scratch(segment().arena_bytes + workspace_bytes_);
    if (!scratch) return out_of_memory(scratch.error());
    find_addresses(*scratch);
    if (auto ok = enqueue(t); !ok) return ok;
    compute_->count(0, 0);
    return hand_over();
  }

  // New shapes: all that follows from them, once.
  result<void> find_shapes(const tag& t) {
    bool is_new = !is_prepared_;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i] || inputs_[i].on_device() == nullptr)
        return at_segment(error(
            error_code::failed,
            fmt::format("the tensor that arrived at input {} is not in the device's memory", i)));
      if (!is_new && inputs_[i].spec() == input_specs_[i]) continue;
      input_specs_[i] = inputs_[i].spec();
      is_new = true;
    }
    if (!is_new) return {};
    std::size_t value = 0;
    workspace_bytes_ = 0;
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      auto& kernel = kernels_[k];
      kernel.inputs.clear();
      for (const auto o : segment().kernels[k].operands)
        kernel.inputs.push_back(o >= 0 ? input_specs_[static_cast<std::size_t>(o)]
                                       : values_[static_cast<std::size_t>(-1 - o)].spec);
      auto results = results_of(k, kernel.inputs, &t);
      if (!results) return std::move(results.error());
      kernel.outputs = std::move(results->back());
      for (std::size_t r = 0; r < kernel.outputs.size(); ++r, ++value) {
        if (kernel.outputs[r].size_bytes() > segment().kernels[k].results[r].size_bytes())
          return at_line(
              error(error_code::failed, fmt::format("it makes {}, more than the plan's bound of {}",
                                                    to_string(kernel.outputs[r]),
                                                    to_string(segment().kernels[k].results[r]))),
              k);
        values_[value].spec = kernel.outputs[r];
      }
      if (auto ok = kernel.op->prepare(kernel.inputs, kernel.outputs); !ok)
        return at_line(ok.error(), k);
      workspace_bytes_ = std::max(workspace_bytes_, kernel.op->workspace_bytes());
    }
    is_prepared_ = true;
    find_shapes_number();
    return {};
  }

  // Those that were met before have the number of then, and what was captured with them: the last
  // batch of an epoch is often smaller, and the next one is as large as the one before.
  void find_shapes_number() {
    for (const auto& known : known_shapes_)
      if (known.inputs == input_specs_) {
        shapes_ = known.number;
        return;
      }
    if (known_shapes_.size() == known_shapes_max) known_shapes_.erase(known_shapes_.begin());
    shapes_ = ++shapes_last_;
    known_shapes_.push_back({input_specs_, shapes_});
  }

  result<void> take_outputs() {
    newest_events waits;
    std::size_t value = 0;
    for (std::size_t k = 0; k < kernels_.size(); ++k)
      for (const auto place : segment().kernels[k].places) {
        if (place < 0) {
          const auto port = static_cast<std::size_t>(-1 - place);
          auto taken = pools_[port].take(values_[value].spec, waits);
          if (!taken) {
            // Buffers of other ports are in use still, and go back by this stream.
            (void)compute_->wait(waits);
            return out_of_memory(taken.error());
          }
          outputs_[port] = std::move(*taken);
        }
        ++value;
      }
    if (auto ok = compute_->wait(waits); !ok) return at_segment(ok.error());
    return {};
  }

  result<void> wait_for_inputs() {
    newest_events needed;
    for (const auto& i : inputs_)
      if (const auto* m = i.on_device(); m->writer() != &compute_->stream())
        needed.add(m->written());
    return compute_->wait(needed);
  }

  void find_addresses(std::span<std::byte> scratch) {
    std::size_t value = 0;
    for (std::size_t k = 0; k < kernels_.size(); ++k)
      for (const auto place : segment().kernels[k].places) {
        auto& v = values_[value++];
        const auto bytes = v.spec.size_bytes();
        v.memory = place < 0 ? outputs_[static_cast<std::size_t>(-1 - place)].bytes().first(bytes)
                             : scratch.subspan(static_cast<std::size_t>(place), bytes);
      }
    value = 0;
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      auto& kernel = kernels_[k];
      kernel.from.clear();
      for (const auto o : segment().kernels[k].operands)
        kernel.from.push_back(
            o >= 0 ? std::as_const(inputs_[static_cast<std::size_t>(o)]).bytes()
                   : std::span<const std::byte>(values_[static_cast<std::size_t>(-1 - o)].memory));
      kernel.to.clear();
      for (std::size_t r = 0; r < kernel.outputs.size(); ++r)
        kernel.to.push_back(values_[value++].memory);
    }
    workspace_ = scratch.subspan(segment().arena_bytes, workspace_bytes_);
  }

  // --- the stream's work ---

  result<void> enqueue(const tag& t) {
    auto* known =
        kernels_.size() >= kernels_worth_capturing && can_capture_ ? find_captured() : nullptr;
    if (known == nullptr) return enqueue_each(t);
    if (known->step == nullptr)
      if (auto ok = capture(*known, t); !ok) return ok;
    if (known->step == nullptr) return enqueue_each(t);
    if (depends_on_step_)
      if (auto ok = compute_->stream().set_draw(t.step); !ok) return at_segment(ok.error());
    if (auto ok = compute_->stream().replay(name_, *known->step); !ok)
      return at_segment(ok.error());
    return {};
  }

  result<void> enqueue_each(const tag& t) {
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      compute_->label_kernel(static_cast<std::uint32_t>(k));
      if (auto ok = kernels_[k].op->enqueue(compute_->stream(), kernels_[k].name, t,
                                            kernels_[k].from, kernels_[k].to, workspace_);
          !ok)
        return at_line(ok.error(), k);
    }
    return {};
  }

  // What stands for these addresses; null: they were not seen before, and are now.
  replayable* find_captured() {
    addresses_.clear();
    for (const auto& i : inputs_) addresses_.push_back(std::as_const(i).bytes().data());
    for (const auto& o : outputs_) addresses_.push_back(std::as_const(o).bytes().data());
    for (auto& c : captured_)
      if (c.shapes == shapes_ && c.scratch == streams_->scratch_number() &&
          c.addresses == addresses_)
        return &c;
    if (captured_.size() == captured_max)
      retire(captured_.front()), captured_.erase(captured_.begin());
    captured_.push_back({addresses_, shapes_, streams_->scratch_number(), nullptr});
    return nullptr;
  }

  void retire(replayable& c) {
    if (c.step == nullptr) return;
    std::shared_ptr<captured_step> step(std::move(c.step));
    if (auto last = compute_->stream().record())
      streams_->keep_until(std::move(*last), std::move(step));
    else
      streams_->keep_behind(*compute_, std::move(step));
  }

  // SG-3. What cannot be captured is enqueued each time.
  result<void> capture(replayable& into, const tag& t) {
    auto& stream = compute_->stream();
    if (auto ok = stream.begin_capture(); !ok) return at_segment(ok.error());
    // A stream that stayed captured after an exception would be of no use to any job.
    struct capture {
      device_stream* of;
      ~capture() {
        if (of != nullptr) (void)of->end_capture();
      }
    } under_way{&stream};
    const auto queued = enqueue_each(t);
    under_way.of = nullptr;
    auto made = stream.end_capture();
    if (!queued && stream.failed()) can_capture_ = false;
    if (!made && stream.failed()) can_capture_ = false;
    if (!can_capture_) return {};
    if (!queued) return queued.error();
    if (!made) return at_segment(made.error());
    into.step = std::move(*made);
    return {};
  }

  // SG-1.
  result<void> hand_over() {
    const auto is_of_others = [&](const tensor& i) {
      return i.on_device() != nullptr && i.on_device()->writer() != &compute_->stream();
    };
    if (!records_event_ && std::none_of(inputs_.begin(), inputs_.end(), is_of_others)) return {};
    auto done = compute_->stream().record();
    if (!done) return at_segment(done.error());
    for (auto& o : outputs_)
      if (o.on_device() != nullptr) o.on_device()->written(*done);
    for (const auto& i : inputs_)
      if (is_of_others(i)) i.on_device()->read_until(*done);
    return {};
  }

  // --- errors ---

  error out_of_memory(const error& e) const {
    return at_segment(no_memory(e, *compute_, *part_->job_plan, segment()));
  }
  error at_line(error e, std::size_t k) const {
    const auto ops = ops_of(segment(), k);
    if (!ops.empty() && !ops.front().source.file.empty())
      e.at(ops.front().source.file, ops.front().source.line);
    return e;
  }
  error at_segment(error e) const { return at_line(std::move(e), 0); }

  struct value {
    tensor_spec spec;
    std::span<std::byte> memory;
  };

  std::shared_ptr<device_streams> streams_;
  std::shared_ptr<device_lane> compute_;
  std::string_view name_;
  std::vector<kernel_here> kernels_;
  std::vector<device_buffer_pool> pools_;
  std::vector<value> values_;
  std::vector<tensor> inputs_, outputs_;
  std::vector<tensor_spec> input_specs_;
  std::span<std::byte> workspace_;
  std::size_t workspace_bytes_ = 0;
  std::vector<replayable> captured_;
  std::vector<const std::byte*> addresses_;
  struct known_shapes {
    std::vector<tensor_spec> inputs;
    std::uint64_t number = 0;
  };
  std::vector<known_shapes> known_shapes_;
  std::uint64_t shapes_ = 0, shapes_last_ = 0;  // their number, of these inputs; the last new one
  std::uint32_t mark_ = 0;
  bool is_prepared_ = false;
  bool records_event_ = false;  // somebody on another stream takes an output
  bool depends_on_step_ = false;
  bool can_capture_ = true;
};

}  // namespace

std::unique_ptr<port_logic> make_segment_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                               std::uint32_t a) {
  return std::make_unique<segment_logic>(s, std::move(p), a);
}

}  // namespace troupe
