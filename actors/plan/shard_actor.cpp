// A parameter shard: owner of a variable. Gradients come in at one port per logical worker,
// versions go out at one port per reader. What happens when is decided by
// runtime/shards/shard_state.hpp; here are the tensors, which stay with the node when the actor
// ends (runtime/shards/kept_shard.hpp).

#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/plan/shard_port_logic.hpp"
#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/packed_rows.hpp"
#include "troupe/devices/host/sgd.hpp"
#include "troupe/runtime/graph/initializers.hpp"
#include "troupe/runtime/shards/shard_update.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace troupe {

namespace {

class shard_logic final : public shard_port_logic {
 public:
  shard_logic(port_shell& self, std::shared_ptr<const part_context> part, std::uint32_t actor)
      : shard_port_logic(self, std::move(part), actor), kept_(*part_->kept[actor]) {}

 private:
  result<void> open() override {
    if (auto ok = open_ports(); !ok) return ok;
    ports_of_gradients_ = gradient_ports(spec_);
    owes_.resize(forward_ports(spec_));
    arrivals_.resize(workers_);
    if (spec_.restore == restore_kind::handed) return {};
    if (auto begun = spec_.restore == restore_kind::kept ? restore() : initialize(); !begun)
      return begun;
    publish();
    return {};
  }

  result<void> initialize() {
    const auto n = elements();
    kept_version first{0, tensor::make(spec_.spec), {}};
    troupe::initialize({first.values.data<float>(), n}, spec_.initializer, spec_.seed,
                       spec_.variable);
    for (const auto& slot : slots_) first.state.push_back(filled(slot.initial));
    begin_with(std::move(first), {});
    return {};
  }

  // Of what is kept, the version that all shards of the job go back to; async: the newest.
  result<void> restore() {
    const bool is_sync = spec_.update == update_kind::sync;
    auto at = std::max_element(kept_.slots.begin(), kept_.slots.end(),
                               [](const auto& a, const auto& b) { return a.version < b.version; });
    if (is_sync)
      at = std::find_if(kept_.slots.begin(), kept_.slots.end(),
                        [&](const auto& s) { return s.version == spec_.version; });
    if (kept_.is_torn || at == kept_.slots.end() || !at->version || !at->is_whole(slots_.size()))
      return error(error_code::failed,
                   fmt::format("variable '{}' at version {} is not kept on this node",
                               spec_.variable, spec_.version));
    if (!has_shape(*at))
      return error(
          error_code::failed,
          fmt::format("this node keeps variable '{}' as {}, but the plan has {}", spec_.variable,
                      to_string(at->values.spec()), to_string(spec_.spec)));
    shard_origin origin{
        *at->version, is_sync ? std::vector<std::uint64_t>(workers_, *at->version) : kept_.applied};
    expects(is_sync || !spec_.forwards || spec_.handed.empty() || spec_.handed == origin.applied,
            "a replica begins with what its shard begins with");
    if (origin.applied.size() != workers_)
      return error(error_code::failed,
                   fmt::format("this node keeps variable '{}' for another number of workers",
                               spec_.variable));
    for (std::size_t w = 0; w < workers_; ++w)
      if (origin.applied[w] < (spec_.start.empty() ? 0 : spec_.start[w]) ||
          origin.applied[w] > spec_.steps[w])
        return error(
            error_code::failed,
            fmt::format(
                "variable '{}' is kept with {} steps of worker {}, which does not fit the plan",
                spec_.variable, origin.applied[w], w));
    if (part_->bugs != nullptr && part_->bugs->forgets_velocity && spec_.is_saved)
      for (std::size_t i = 0; i < slots_.size(); ++i) at->state[i] = filled(slots_[i].initial);
    begin_with(std::move(*at), std::move(origin));
    return {};
  }

  // Older versions that are kept here stay until newer ones take their slots: what others keep may
  // be as old (RC-3).
  void begin_with(kept_version first, shard_origin origin) {
    auto older = take_older(origin.version);
    for (const auto& o : older) origin.older.push_back(*o.version);
    state_.emplace(spec_, version_slots(spec_), origin, part_->bugs);
    kept_.applied =
        spec_.update == update_kind::async && !origin.applied.empty()
            ? std::move(origin.applied)
            : std::vector<std::uint64_t>(part_->job_plan->workers,
                                         spec_.update == update_kind::sync ? origin.version : 0);
    record_.steps.store(
        spec_.update == update_kind::sync
            ? origin.version
            : std::accumulate(kept_.applied.begin(), kept_.applied.end(), std::uint64_t{0}),
        std::memory_order_relaxed);
    kept_.slots.clear();
    kept_.slots.resize(state_->slots());
    kept_.slots[0] = std::move(first);
    std::move(older.begin(), older.end(), kept_.slots.begin() + 1);
    kept_.is_torn = false;
    reserve_for_cuts();
  }

  // A cut that is being written pins values and slots, so that applies go elsewhere: to memory that
  // is here and has been touched, or the step after a cut of 1 GB would wait for seconds until the
  // system has found as much.
  void reserve_for_cuts() {
    if (!spec_.cuts_at_end) return;
    const std::size_t of_sums =
        spec_.forwards && spec_.update == update_kind::sync && workers_ > 1 ? 1 : 0;
    while (spares_.size() < 1 + slots_.size() + of_sums) keep_spare(filled(0));
  }

  tensor filled(float with) const {
    auto t = tensor::make(spec_.spec);
    std::fill_n(t.data<float>(), elements(), with);
    return t;
  }

  bool has_shape(const kept_version& v) const {
    return v.values.spec() == spec_.spec &&
           std::all_of(v.state.begin(), v.state.end(),
                       [&](const tensor& t) { return t.spec() == spec_.spec; });
  }

  std::vector<kept_version> take_older(std::uint64_t version) {
    std::vector<kept_version> older;
    if (spec_.update == update_kind::async || kept_.is_torn) return older;
    for (auto& s : kept_.slots)
      if (s.version && *s.version < version && *s.version + spec_.keeps >= version &&
          s.is_whole(slots_.size()) && has_shape(s))
        older.push_back(std::move(s));
    return older;
  }

  void on_saved(const cut_saved&) override {
    state_->on_saved();
    advance();
  }

  // Another node's, once: values and slots, in any order.
  void on_handed(tensor_ready& m) {
    handed_.state.resize(slots_.size());
    auto& to = m.port == ports_of_gradients_ ? handed_.values
                                             : handed_.state[m.port - ports_of_gradients_ - 1];
    expects(m.value.spec() == spec_.spec, "what is handed over has its variable's shape");
    to = std::move(m.value);
    give_back(m.port);
    trace(trace_kind::apply, m.t.step, m.port);
    if (!handed_.is_whole(slots_.size())) return;
    const bool is_sync = spec_.update == update_kind::sync;
    shard_origin origin{spec_.version, is_sync ? std::vector<std::uint64_t>(workers_, spec_.version)
                                               : spec_.handed};
    if (!is_sync)
      origin.version =
          std::accumulate(origin.applied.begin(), origin.applied.end(), std::uint64_t{0});
    handed_.version = origin.version;
    begin_with(std::exchange(handed_, {}), std::move(origin));
    publish();
    for (auto& early : std::exchange(early_, {})) take(early);
    advance();
  }

  void on_tensor(tensor_ready& m) override {
    expects(bool(m.value) || m.t.dead != 0, "a gradient is there, or left out");
    record_.count_in(m.value ? m.value.size_bytes() : 0);
    record_.ports[m.port]->count_item();
    if (m.port >= ports_of_gradients_) return on_handed(m);
    // A replica's, whose shard has begun before.
    if (!state_) return early_.push_back(std::move(m));
    take(m);
    advance();
  }

  void take(tensor_ready& m) {
    auto arrived = state_->on_gradient(m.port, m.t.step, m.t.mark);
    // A sum is a gradient of every worker.
    for (std::uint32_t w = 1; spec_.takes_sums && arrived && w < workers_; ++w)
      arrived = state_->on_gradient(w, m.t.step, m.t.mark);
    if (!arrived) return fail(arrived.error());
    if (part_->bugs != nullptr) arrivals_[m.port].push_back(++arrived_);
    if (*arrived == shard_state::arrival::queued)
      ports_.arrive(m.port, item{m.t, std::move(m.value)});
    else
      give_back(m.port);
    publish();
  }

  void on_credit(const credit& m) override {
    if (const auto reader = take_credit(m)) granted(*reader);
    advance();
  }

  void on_peer_lost(const peer_lost& m) override {
    if (m.port >= ports_of_gradients_ || ports_.in[m.port].is_lost) return;
    ports_.in[m.port].is_lost = true;
    // A synchronous job ends as soon as its coordinator learns of the loss, which is the root
    // cause; this would only follow.
    if (spec_.update == update_kind::sync || spec_.is_recoverable) return;
    if (auto lost = state_->worker_lost(m.port); !lost)
      return fail(std::move(lost.error()).while_doing(m.reason));
    advance();
  }

  void advance() override {
    if (!is_started_ || has_failed_) return;
    if (!state_)
      return record_.enter(actor_state::waiting_for_input,
                           static_cast<std::uint32_t>(ports_of_gradients_));
    while (!has_failed_) {
      const auto action = state_->next();
      if (!action) break;
      std::visit([this](const auto& a) { carry_out(a); }, *action);
    }
    publish();
    if (has_failed_) return;
    if (state_->is_finished()) return report_done();
    show_wait(ports_of_gradients_);
  }

  void carry_out(const shard_apply& a) {
    busy_mark busy(*this);
    const auto workers = ports_of_gradients_;
    const auto first = a.worker < 0 ? 0 : static_cast<std::size_t>(a.worker);
    const auto last = a.worker < 0 ? workers : first + 1;
    if (auto ok = spec_.pushes_rows ? take_rows(a, first, last) : take_gradients(first, last); !ok)
      return fail(std::move(ok.error()));
    if (part_->bugs != nullptr && part_->bugs->sums_as_they_come && !is_by_rows_)
      sort_as_they_came(first, last);
    const bool is_marked = leave_out_marked();
    if (spec_.forwards) forward(a, first);
    write(a);
    if (spec_.update == update_kind::sync)
      std::fill(kept_.applied.begin(), kept_.applied.end(), a.version);
    else
      ++kept_.applied[first];
    kept_.is_torn = false;
    if (part_->probe != nullptr)
      part_->probe->on_apply(
          {part_->job, part_->epoch, part_->node, spec_.variable, spec_.follows, a.version});
    for (auto i = first; i < last; ++i) {
      if (is_marked ? a.worker >= 0 : is_left_out(i)) ++left_out_[i];
      ports_.in[i].queue.pop();
      if (spec_.forwards && spec_.update == update_kind::async)
        owes_[i] = 1;  // the worker's push returns when it is committed
      else
        give_back(static_cast<std::uint32_t>(i));
    }
    if (is_marked && a.worker < 0)
      for (auto& n : left_out_) ++n;
    update_queue();
    ++fired_;
    record_.count_step();
    trace(trace_kind::apply, a.step,
          a.worker < 0 ? trace_event::everywhere : static_cast<std::uint32_t>(a.worker));
  }

  result<void> take_gradients(std::size_t first, std::size_t last) {
    gradients_.clear();
    rows_.clear();
    for (auto i = first; i < last; ++i) {
      const auto& head = ports_.in[i].queue.front();
      if (is_left_out(i)) continue;
      expects(head.value.spec() == spec_.spec, "a gradient has its variable's shape");
      gradients_.push_back(std::as_const(head.value).data<float>());
    }
    return {};
  }

  // A worker says so by a gradient that is all NaN, which sums are then, too: the step of all
  // workers is left out (LSC-1).
  bool leave_out_marked() {
    if (!spec_.leaves_out_marked || elements() == 0) return false;
    if (std::all_of(gradients_.begin(), gradients_.end(),
                    [](const float* g) { return std::isfinite(g[0]); }))
      return false;
    gradients_.clear();
    return true;
  }

  // By the worker, in whose step something was not finite (nan_policy::skip).
  bool is_left_out(std::size_t worker) { return !ports_.in[worker].queue.front().value; }

  // Gradients as rows, for an update that touches no others; else each unpacked.
  result<void> take_rows(const shard_apply& a, std::size_t first, std::size_t last) {
    const auto n = spec_.spec.shape.size(0);
    gradients_.clear();
    rows_.clear();
    for (auto i = first; i < last; ++i) {
      const auto& head = ports_.in[i].queue.front().value;
      if (is_left_out(i)) continue;
      expects(are_rows_of(head.spec(), spec_.spec), "a gradient has rows of its variable");
      const auto width = elements() / static_cast<std::size_t>(n);
      const packed_rows rows{head.bytes().data(), head.size_bytes() / packed_row_bytes(width),
                             width};
      // They come from elsewhere.
      if (!are_within(rows, n))
        return error(
            error_code::failed,
            fmt::format("variable '{}': gradient of worker {}, step {}: it has a row outside the "
                        "variable's {} rows",
                        spec_.variable, i, a.step, n));
      rows_.push_back(rows);
    }
    is_by_rows_ =
        changes_rows_alone(spec_) && !(spec_.forwards && spec_.update == update_kind::sync);
    if (is_by_rows_) return {};
    while (unpacked_.size() < rows_.size()) unpacked_.push_back(tensor::make(spec_.spec));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      unpack_rows(unpacked_[i].data<float>(), static_cast<std::size_t>(n), rows_[i]);
      gradients_.push_back(std::as_const(unpacked_[i]).data<float>());
    }
    return {};
  }

  // To the replica: what is about to be applied.
  void forward(const shard_apply& a, std::size_t first) {
    const auto port = static_cast<std::uint32_t>(spec_.readers.size() + (a.worker < 0 ? 0 : first));
    if (gradients_.empty() && rows_.empty()) {
      emit(port, tag{.step = a.step, .dead = 1}, tensor());
      return trace(trace_kind::emit, a.step, port);
    }
    // A synchronous replica takes no rows.
    const bool is_sum = spec_.update == update_kind::sync && (workers_ != 1 || spec_.pushes_rows);
    if (!is_sum) {
      emit(port, tag{.step = a.step}, ports_.in[first].queue.front().value);
      return trace(trace_kind::emit, a.step, port);
    }
    auto sum = take_spare();
    sum_gradients(sum.data<float>(), gradients_, elements());
    gradients_.assign(1, std::as_const(sum).data<float>());
    emit(port, tag{.step = a.step}, sum);
    keep_spare(std::move(sum));
    trace(trace_kind::emit, a.step, port);
  }

  // The next version, in its slot; in the place of the one before where nobody has that.
  void write(const shard_apply& a) {
    auto& from = kept_.slots[a.from];
    auto& to = kept_.slots[a.to];
    const bool is_in_place = a.from == a.to;
    to.state.resize(slots_.size());
    auto values = out_of(to.values, is_in_place);
    kept_.is_torn = is_in_place && !values;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      made_[i] = out_of(to.state[i], is_in_place);
      kept_.is_torn = kept_.is_torn || (is_in_place && !made_[i]);
    }
    to.version.reset();
    const auto before =
        std::accumulate(kept_.applied.begin(), kept_.applied.end(), std::uint64_t{0});
    const auto count = count_of(spec_, spec_.update == update_kind::sync ? a.version : before + 1);
    stepped w = step_of(from.values, values);
    for (std::size_t i = 0; i < slots_.size(); ++i) steps_[i] = step_of(from.state[i], made_[i]);
    update(count, w);
    if (part_->bugs != nullptr && part_->bugs->applies_twice && a.step % 4 == 3) {
      w.in = w.out;
      for (auto& s : steps_) s.in = s.out;
      update(count, w);
    }
    if (values) keep_spare(std::exchange(to.values, std::move(values)));
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (made_[i]) keep_spare(std::exchange(to.state[i], std::move(made_[i])));
    to.version = a.version;
    for (std::uint32_t i = 0; i < state_->slots(); ++i)
      if (!state_->kept_in(i)) kept_.slots[i].version.reset();
  }

  // Where to write what goes into `slot`; nothing: right there, in place.
  tensor out_of(tensor& slot, bool is_in_place) {
    if (is_in_place && slot.is_unique()) return {};
    if (!is_in_place && slot && slot.is_unique()) return std::exchange(slot, tensor());
    return take_spare();
  }

  void keep_spare(tensor t) {
    if (t) spares_.push_back(std::move(t));
  }

  void update(update_count count, stepped w) {
    if (!is_by_rows_ && !gradients_.empty()) return update_all(count, w);
    const auto copy = [&](const stepped& t) {
      if (t.out != t.in) std::copy_n(t.in, elements(), t.out);
    };
    copy(w);
    for (const auto& s : steps_) copy(s);
    if (is_by_rows_)
      by_rows_.update(w.out, rows_, learning_rate_at(spec_.optimizer, spec_.schedule, count));
  }

  // A large variable on several threads. With the norm of all of its gradient each element depends
  // on all others.
  void update_all(update_count count, stepped w) {
    constexpr double element_ns = 1, least_ns = 100'000;
    constexpr std::int64_t grain = 1024;
    const auto n = static_cast<std::int64_t>(elements());
    const auto cut = spec_.optimizer.clip_norm > 0
                         ? tile_cut{n, std::max<std::int64_t>(n, 1)}
                         : tile_cut::by_cost(n, element_ns, least_ns, grain);
    if (cut.tiles() < 2) return apply_to_shard(spec_, count, w, steps_, gradients_, elements());
    auto& team = part_->device->team();
    desks_.resize(team.threads());
    (void)team.run(cut.tiles(), [&](std::size_t tile, std::size_t worker) -> result<void> {
      const auto from = cut.begin(tile);
      const auto part_of = [&](const stepped& t) { return stepped{t.in + from, t.out + from}; };
      auto& d = desks_[worker];
      d.steps.clear();
      d.gradients.clear();
      for (const auto& s : steps_) d.steps.push_back(part_of(s));
      for (const auto* g : gradients_) d.gradients.push_back(g + from);
      apply_to_shard(spec_, count, part_of(w), d.steps, d.gradients,
                     static_cast<std::size_t>(cut.size(tile)));
      return {};
    });
  }

  // No `out`: in place.
  static stepped step_of(tensor& in, tensor& out) {
    return {std::as_const(in).data<float>(), (out ? out : in).data<float>()};
  }

  // Of a planted bug.
  void sort_as_they_came(std::size_t first, std::size_t last) {
    std::map<std::uint64_t, const float*> sorted;
    for (auto i = first; i < last; ++i) {
      sorted.emplace(arrivals_[i].front(), gradients_[i - first]);
      arrivals_[i].pop_front();
    }
    gradients_.clear();
    for (const auto& [number, gradient] : sorted) gradients_.push_back(gradient);
  }

  void carry_out(const shard_claim& a) {
    if (begin_claim(a.reader)) granted(a.reader);
  }

  void carry_out(const shard_send& a) {
    emit(a.reader, tag{.step = a.item}, kept_.slots[a.slot].values);
    trace(trace_kind::emit, a.item, a.reader);
  }

  void carry_out(const shard_cut& a) {
    const bool is_off = part_->bugs != nullptr && part_->bugs->saves_other_slot;
    const auto other = (a.slot + 1) % kept_.slots.size();
    const auto& s =
        kept_.slots[is_off && kept_.slots[other].is_whole(slots_.size()) ? other : a.slot];
    std::vector<std::pair<std::string, tensor>> state;
    for (std::size_t i = 0; i < slots_.size(); ++i) state.emplace_back(slots_[i].name, s.state[i]);
    tell(self_.context(), part_->archive,
         save_shard{part_->job, part_->epoch, a.step, actor_, spec_.variable, kept_.applied,
                    s.values, std::move(state), caf::actor_cast<caf::actor>(&self_)});
  }

  // Of a port to the replica: what it was sent last is committed.
  void granted(std::uint32_t reader) {
    state_->on_credit(reader);
    if (reader < spec_.readers.size()) return;
    const auto worker = reader - static_cast<std::uint32_t>(spec_.readers.size());
    if (std::exchange(owes_[worker], 0) != 0) give_back(worker);
  }

  tensor take_spare() {
    auto at =
        std::find_if(spares_.begin(), spares_.end(), [](const tensor& t) { return t.is_unique(); });
    if (at == spares_.end()) return tensor::make(spec_.spec);
    auto spare = std::move(*at);
    spares_.erase(at);
    return spare;
  }

  kept_shard& kept_;
  std::size_t ports_of_gradients_ = 0;  // the first ones
  kept_version handed_;                 // as far as it has come
  std::vector<tensor_ready> early_;     // gradients that came before; a credit each
  std::vector<tensor> spares_;          // of the variable's spec
  std::vector<const float*> gradients_;
  std::vector<packed_rows> rows_;  // pushed, by worker
  std::vector<tensor> unpacked_;   // the gradients that they are
  bool is_by_rows_ = false;        // gradients_ has nothing, and rows_ is applied as it is
  row_updater by_rows_;
  // By slot: where an apply writes it; none: in place.
  std::vector<tensor> made_ = std::vector<tensor>(slots_.size());
  std::vector<stepped> steps_ = std::vector<stepped>(slots_.size());
  struct desk {
    std::vector<stepped> steps;
    std::vector<const float*> gradients;
  };
  std::vector<desk> desks_;  // of threads that share an update: the part that each is at
  // By worker: numbers of its queued gradients; kept for a planted bug only.
  std::vector<std::deque<std::uint64_t>> arrivals_;
  std::uint64_t arrived_ = 0;
  // Async, by worker: a credit that it gets when its last gradient is committed.
  std::vector<std::uint8_t> owes_;
};

}  // namespace

std::unique_ptr<port_logic> make_shard_logic(port_shell& s, std::shared_ptr<const part_context> p,
                                             std::uint32_t a) {
  return std::make_unique<shard_logic>(s, std::move(p), a);
}

}  // namespace troupe
