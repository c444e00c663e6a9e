#include "troupe/runtime/flow/flow_group.hpp"

#include "troupe/runtime/flow/flow_counting.hpp"
#include "troupe/runtime/flow/lender.hpp"
#include "troupe/runtime/flow/stage_replacement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace troupe {

std::function<std::unique_ptr<stage>()> flow_slot::make() const {
  if (change != nullptr && change->judged.load() != stage_change::verdict::goes_back)
    return change->make;
  return make_before ? make_before : info->make;
}

namespace {

error is_over_already(const stage_change& c) {
  return error(error_code::failed, c.name + ": it is over, and works on nothing more");
}

constexpr std::uint32_t depth_max = 64;      // of stages that call each other
constexpr std::size_t batch_items_max = 64;  // that leave for another group at once
constexpr std::size_t batch_bytes_max = 256 << 10;
constexpr double slow_ns = 5'000;  // nothing waits in a batch while such a stage runs
constexpr std::int64_t look_at_once_ns = 100'000;  // of a call: the clock is looked at after it
constexpr double light_ns = 5'000;                 // one call of 64 is measured
constexpr std::uint32_t looks_max = 64;            // firings between two looks at the clock
constexpr std::uint32_t goes_before_a_look = 256;
constexpr std::int64_t last_waits_ns = 2'000'000;  // whoever has its turn last, for the others
constexpr std::size_t state_bytes_max = std::size_t{1} << 30;  // that a replica is made again with
constexpr double ahead_ns = 100'000;  // of work that a replica in another thread has waiting
constexpr long long ahead_max = 16;   // items of it
constexpr std::int64_t noted_each_ns = 5'000;  // births of items that come faster: one of 16

}  // namespace

// --- what a stage may ask ------------------------------------------------------------------------

const item_origin& stage_output::origin() const noexcept { return slot_.origin; }
bool stage_output::ends_ticket() const noexcept { return slot_.took_end; }
void stage_output::set_origin(item_origin o) { slot_.origin = std::move(o); }
void stage_output::set_label(std::shared_ptr<const std::string> label) {
  slot_.origin.label = std::move(label);
}
void stage_output::set_unheard(bool is_unheard) noexcept { slot_.is_unheard = is_unheard; }
void stage_output::fail(error e) {
  if (!slot_.failed) slot_.failed.emplace(std::move(e));
}
std::optional<error> stage_output::take_failure() {
  return std::exchange(slot_.failed, std::nullopt);
}
std::uint64_t stage_output::items_put() const noexcept { return now_in(slot_.counters->items_out); }
bool stage_output::has_room(std::uint32_t port) const noexcept {
  return std::ranges::none_of(slot_.out[port], [](const auto* e) { return e->is_full; });
}
std::uint64_t stage_output::in_loop(std::uint32_t feedback) const noexcept {
  return group_.loops_[feedback].in_flight;
}
std::uint64_t stage_output::outstanding(std::uint32_t port) const noexcept {
  std::uint64_t most = 0;
  for (const auto* e : slot_.out[port])
    most = std::max(most, now_in(e->meter->put_items) - now_in(e->meter->taken_items));
  return most;
}
bool stage_output::wants_more(std::uint32_t port) const {
  // That another thread has made room is seen at once; its message waits for the end of our slice.
  for (const auto* e : slot_.out[port])
    if (e->is_full && e->to == nullptr && !group_.is_full(*e)) group_.room(e->id);
  // What leads nowhere any more takes everything, and loses it.
  return has_room(port) && std::ranges::none_of(slot_.out[port], [](const auto* e) {
           return e->is_closed || (e->to != nullptr && !e->queue.empty());
         });
}
// As many ahead as 100 us of the calls in this thread are, and one of those that take longer: what
// waits while its replica is busy is late. Of two that have as little, the one here is called.
std::int64_t stage_output::load_of(std::uint32_t port) const noexcept {
  const auto n = static_cast<std::int64_t>(outstanding(port));
  const auto& edges = slot_.out[port];
  for (const auto* e : edges) {
    if (e->to == nullptr) continue;
    if (e->to->mean_ns > 0) slot_.called_ns = e->to->mean_ns;
    return 2 * n;
  }
  if (slot_.called_ns == 0) return 2 * n;
  return 2 * (n - std::clamp(std::llround(ahead_ns / slot_.called_ns), 1LL, ahead_max)) + 1;
}
bool stage_output::is_held() const noexcept { return group_.is_held_; }
std::uint32_t stage_output::ports() const noexcept {
  return static_cast<std::uint32_t>(slot_.out.size());
}
std::uint32_t stage_output::inputs() const noexcept {
  return static_cast<std::uint32_t>(slot_.in.size());
}
const flow_item* stage_output::head(std::uint32_t input) const noexcept {
  auto& queue = slot_.in[input]->queue;
  return queue.empty() ? nullptr : &queue.front();
}
bool stage_output::has_ended(std::uint32_t input) const noexcept {
  return slot_.in[input]->has_ended && slot_.in[input]->queue.empty();
}
void stage_output::count_dropped(std::uint64_t items) noexcept {
  count(slot_.counters->dropped, items);
}
std::int64_t stage_output::now_ns() const { return (*group_.now_)(); }
void stage_output::flush() { group_.flush(); }
std::uint32_t stage_output::borrow(lender& from) {
  const auto who = group_.graph_->mark_of(slot_.id);
  if (const auto unit = from.try_take(who)) return *unit;
  flush();
  auto& c = *slot_.counters;
  const auto began = now_ns();
  c.is_borrowing.store(true, std::memory_order_relaxed);
  const auto unit = from.take(who);
  const auto now = now_ns(), waited = now - began;
  group_.ticks_ = static_cast<std::uint32_t>(now / coarse_tick_ns);
  group_.pulse_->since_ticks.store(group_.ticks_, std::memory_order_relaxed);
  c.last_ticks.store(group_.ticks_, std::memory_order_relaxed);
  c.is_borrowing.store(false, std::memory_order_relaxed);
  count(c.blocked_ns, static_cast<std::uint64_t>(waited));
  group_.inner_ns_ += waited;  // no time of its own
  return unit;
}

// --- room ----------------------------------------------------------------------------------------

bool flow_group::is_full(const flow_edge& e) const noexcept {
  const auto items = now_in(e.meter->put_items) - e.meter->taken_items.load();
  if (items < e.info->items_min) return false;
  const auto bytes = now_in(e.meter->put_bytes) - now_in(e.meter->taken_bytes);
  return items >= e.info->items_max || bytes >= e.info->bytes_max;
}

// Of another group's edge: it says when there is room, unless there is by now.
void flow_group::set_full(flow_edge& e) {
  if (e.is_full || e.is_closed || !is_full(e)) return;
  if (e.to == nullptr) {
    e.meter->producer_waits.store(true);
    if (!is_full(e)) {
      e.meter->producer_waits.store(false);
      return;
    }
  }
  e.is_full = true;
  auto& s = *e.from;
  // One that looks itself has other outputs.
  if (s.full_outputs++ == 0 && !s.info->looks_for_room) blocked(s);
}

void flow_group::blocked(flow_slot& s) {
  if (s.counters->is_blocked.load(std::memory_order_relaxed)) return;
  s.counters->is_blocked.store(true, std::memory_order_relaxed);
  if (now_ != nullptr) s.blocked_since_ns = (*now_)();
}
void flow_group::goes_on(flow_slot& s) {
  s.counters->is_blocked.store(false, std::memory_order_relaxed);
  if (now_ != nullptr && s.blocked_since_ns != 0)
    count(s.counters->blocked_ns, static_cast<std::uint64_t>((*now_)() - s.blocked_since_ns));
  s.blocked_since_ns = 0;
}

void flow_group::room(std::uint32_t edge) {
  auto* e = edges_[edge].get();
  if (e == nullptr || e->from == nullptr || !e->is_full) return;
  if (!e->is_closed && is_full(*e)) {
    // It was filled again meanwhile: then it waits anew.
    if (e->to != nullptr) return;
    e->meter->producer_waits.store(true);
    if (is_full(*e)) return;
    e->meter->producer_waits.store(false);
  }
  e->is_full = false;
  auto& s = *e->from;
  mark(s);
  if (--s.full_outputs == 0 && !s.info->looks_for_room) goes_on(s);
}

flow_item flow_group::pop(flow_edge& e) {
  auto it = e.queue.pop();
  e.queued_bytes -= it.bytes;
  count(e.meter->taken_bytes, std::uint64_t{it.bytes});
  count(e.meter->taken_items, std::uint64_t{1});
  // Room is told when half of it is free, so that a waiting producer is not woken for each item.
  const bool is_half_free =
      e.queue.count <= e.info->items_max / 2 && e.queued_bytes <= e.info->bytes_max / 2;
  if (e.from != nullptr) {
    if (e.is_full && (is_half_free || e.queue.empty())) room(e.id);
    if (e.queue.empty() && e.from->info->looks_for_room) mark(*e.from);
    return it;
  }
  if (e.is_far) {
    tell_taken(e);
  } else if (e.queue.empty() || (is_half_free && e.queue.count % 8 == 0)) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (e.meter->producer_waits.load() && wire_ != nullptr) {
      e.meter->producer_waits.store(false);
      wire_->give_room(e.id);
    }
  }
  return it;
}

// A far producer sees what is taken by an eighth of what its edge may hold, or when nothing waits.
void flow_group::tell_taken(flow_edge& e) {
  if (wire_ == nullptr) return;
  const auto items = now_in(e.meter->taken_items), bytes = now_in(e.meter->taken_bytes);
  // Some are taken again, or are marks that nobody put (lose()).
  if (static_cast<std::int64_t>(items - e.told_items) <= 0) return;
  // A join that holds items has no room for what is taken and not told.
  const bool is_held = e.info->items_min > 1 && e.queue.count <= e.info->items_min;
  if (!e.queue.empty() && !is_held && (items - e.told_items) * 8 < e.info->items_max &&
      (bytes - e.told_bytes) * 8 < e.info->bytes_max)
    return;
  e.told_items = items;
  e.told_bytes = bytes;
  wire_->give_room(e.id);
}

// --- items ---------------------------------------------------------------------------------------

// The way of most items, all of it inlined: to a stage that is here, idle, and takes what comes.
template <class Origin>
[[gnu::always_inline]] inline void flow_group::put(flow_slot& s, std::uint32_t port,
                                                   any_value&& value, Origin&& origin) {
  if (failure_) [[unlikely]]
    return;
  count(s.counters->items_out, std::uint64_t{value ? 1U : 0U});
  auto* e = s.only;
  if (port != 0 || e == nullptr) [[unlikely]]
    return put_to_all(s, port, std::move(value), std::forward<Origin>(origin));
  const auto bytes = value.bytes();
  count(s.counters->bytes_out, std::uint64_t{bytes});
  if (e->is_plain && e->queue.empty() && e->to->is_idle() && depth_ < depth_max) [[likely]]
    take(*e->to, *e, std::move(value), std::forward<Origin>(origin), bytes);
  else
    send(*e, std::move(value), std::forward<Origin>(origin), bytes);
}

template <class Origin>
void flow_group::put_to_all(flow_slot& s, std::uint32_t port, any_value&& value, Origin&& origin) {
  const auto& edges = s.out[port];
  if (edges.empty()) return;
  const auto bytes = value.bytes();
  count(s.counters->bytes_out, std::uint64_t{bytes});
  for (std::size_t i = 0; i + 1 < edges.size(); ++i)
    send(*edges[i], value.copy(), std::as_const(origin), bytes);
  send(*edges.back(), std::move(value), std::forward<Origin>(origin), bytes);
}

template <class Origin>
[[gnu::noinline]] void flow_group::send(flow_edge& e, any_value&& value, Origin&& origin,
                                        std::size_t bytes) {
  if (e.is_closed) {
    count(e.from->counters->dropped, std::uint64_t{1});
    return;
  }
  if (e.info->loop != no_port) ++loops_[e.info->loop].in_flight;
  // What is taken at once is never waiting, and stands in no meter.
  if (e.to != nullptr && e.queue.empty() && can_be_called(*e.to) && depth_ < depth_max &&
      (e.to->in.size() == 1 || e.to->info->takes_any) &&
      (!e.to->info->looks_for_room || e.to->what->choose(stage_output(*this, *e.to)) != no_port))
    return take(*e.to, e, std::move(value), std::forward<Origin>(origin), bytes);
  count(e.meter->put_items, std::uint64_t{1});
  count(e.meter->put_bytes, std::uint64_t{bytes});
  if (e.to == nullptr) {
    e.outbox_bytes += bytes;
    if (e.outbox.empty()) e.outbox.reserve(e.last_batch);
    e.outbox.emplace_back(std::move(value), std::forward<Origin>(origin), bytes);
    if (e.outbox.size() >= batch_items_max || e.outbox_bytes >= batch_bytes_max) post(e);
    return set_full(e);
  }
  e.queued_bytes += bytes;
  e.queue.push(std::move(value), std::forward<Origin>(origin), bytes);
  mark(*e.to);
  set_full(e);
}

// For a checkpoint: one that would be in the middle of an item for long begins none, nor one whose
// items have to go their way before.
bool flow_group::is_held_back(const flow_slot& s) const noexcept {
  return is_held_ && s.may_wait && (s.puts_several || s.feeds_unwritten);
}
bool flow_group::can_be_called(const flow_slot& s) const noexcept {
  return !is_held_back(s) && !s.is_busy && !s.is_over && !failure_ &&
         (s.info->looks_for_room || (!s.has_more && s.full_outputs == 0));
}

void flow_group::post(flow_edge& e) {
  if (wire_ == nullptr) return;
  // What is told of a ticket goes before its end, which says that all of it is done.
  for (const auto i : letters_)
    if (i != e.id && !edges_[i]->outbox.empty()) post_alone(*edges_[i]);
  post_alone(e);
}
void flow_group::post_alone(flow_edge& e) {
  e.outbox_bytes = 0;
  e.last_batch = e.outbox.size();
  e.owes_end = false;
  wire_->send(e.id, std::exchange(e.outbox, {}), e.end_sent);
}

void flow_group::flush() {
  for (const auto i : outgoing_)
    if (auto& e = *edges_[i]; !e.outbox.empty() || e.owes_end) post(e);
}

template <class Origin>
[[gnu::always_inline]] inline void flow_group::take(flow_slot& s, flow_edge& e, any_value&& value,
                                                    Origin&& origin, std::size_t bytes) {
  auto& c = *s.counters;
  count(c.items_in, std::uint64_t{1});
  count(c.bytes_in, std::uint64_t{bytes});
  s.origin = std::forward<Origin>(origin);
  s.took_end = std::exchange(s.origin.ends_ticket, false);
  s.ticket_is_open = s.is_replica;
  if (s.has_chores) {
    if (!s.is_open && !open(s)) return;
    s.loop_item = e.info->loop;
    if (s.is_chained) {
      // A ticket ends here with the item that it ended with before, or with none.
      s.ticket_is_open = s.took_end;
      if (!value) return after(s);
    }
    if (s.is_recovered && s.origin.kind != item_kind::item) return take_mark(s, std::move(value));
  }
  call(s, [&](stage_output& out) __attribute__((always_inline)) {
    return s.what->take(e.to_port, std::move(value), out);
  });
  if (s.is_end && s.origin.born_ns != 0) c.latency.add((*now_)() - s.origin.born_ns);
  if (s.has_more) go_on(s);
  if (!s.has_more && (s.has_chores || s.is_closing)) after(s);
}

// An empty answer: it has more than is sent, or cannot say.
void flow_group::put_state(flow_slot& s, stage_output& out) {
  std::optional<tensor> saved;
  try {
    saved = s.what->save();
  } catch (const std::bad_alloc&) {
  }
  if (!saved || saved->size_bytes() > state_bytes_max) return;
  count(s.counters->items_out, ~std::uint64_t{0});
  out.put_last(0, any_value(std::move(*saved)));
}

// What is no item, to a replica of a lane (recovered_replicas.hpp): its answer is a ticket as an
// item's is.
[[gnu::noinline]] void flow_group::take_mark(flow_slot& s, any_value&& value) {
  count(s.counters->items_in, ~std::uint64_t{0});
  call(s, [&](stage_output& out) {
    if (s.origin.kind == item_kind::end) return s.what->end(0, out);
    if (s.origin.kind == item_kind::cut) {
      put_state(s, out);
      return false;
    }
    bool is_loaded = false;
    try {
      is_loaded = value.is<tensor>() && s.what->load(value.get<tensor>());
    } catch (const std::bad_alloc&) {
    }
    // Whatever its policy: it would go on with another state.
    if (!is_loaded && !failure_)
      failure_ = flow_failure{
          s.info->name,
          error(error_code::failed, fmt::format("{} ({}): its state cannot be loaded again",
                                                s.info->name, flow_graph::line_of(s.info->where)))};
    return false;
  });
  if (s.has_more) go_on(s);
  if (!s.has_more) after(s);
}

// --- calls ---------------------------------------------------------------------------------------

template <class Call>
[[gnu::always_inline]] inline void flow_group::call(flow_slot& s, Call c) {
  if (s.is_slow && !outgoing_.empty()) flush();
  s.is_busy = true;
  ++depth_;
  auto& pulse = *pulse_;
  auto& k = *s.counters;
  const auto before = now_in(pulse.running);
  pulse.running.store(s.id, std::memory_order_relaxed);
  // Slow ones are measured each time; the others with all that they call, in one call of 64.
  if (is_measuring_ || s.is_measured || (depth_ == 1 && --until_measured_ == 0)) [[unlikely]]
    call_measured(s, Call(c));  // a copy, so that the usual one stays in registers
  else
    call_bare(s, c);
  count(k.calls, std::uint64_t{1});
  pulse.running.store(before, std::memory_order_relaxed);
  --depth_;
  s.is_busy = false;
  if (s.failed) [[unlikely]]
    failed(s);
}

template <class Call>
[[gnu::always_inline]] inline void flow_group::call_bare(flow_slot& s, const Call& c) {
  pulse_->since_ticks.store(ticks_, std::memory_order_relaxed);
  s.counters->last_ticks.store(ticks_, std::memory_order_relaxed);
  try {
    stage_output out(*this, s);
    s.has_more = c(out);
    s.puts_several = s.puts_several || s.has_more;
  } catch (const broken_invariant&) {
    s.is_busy = false;
    --depth_;
    throw;
  } catch (...) {
    s.has_more = false;
    s.failed.emplace(what_was_thrown());
  }
}

template <class Call>
[[gnu::noinline]] void flow_group::call_measured(flow_slot& s, const Call& c) {
  const auto outer = std::exchange(is_measuring_, true);
  const auto inner = std::exchange(inner_ns_, 0);
  const auto begin = (*now_)();
  ticks_ = static_cast<std::uint32_t>(begin / coarse_tick_ns);
  call_bare(s, c);
  const auto took = (*now_)() - begin;
  const auto own = std::max<std::int64_t>(0, took - inner_ns_);
  inner_ns_ = inner + took;
  is_measuring_ = outer;
  auto& k = *s.counters;
  count(k.measured, std::uint64_t{1});
  count(k.measured_ns, static_cast<std::uint64_t>(own));
  s.mean_ns = s.mean_ns == 0 ? double(own) : s.mean_ns * 0.875 + double(own) * 0.125;
  s.is_slow = s.info->may_block || s.mean_ns > slow_ns;
  // Whoever waits for this thread, such as to end everything, waits for no second one.
  if (took > look_at_once_ns) look_every_ = 1;
  s.is_measured = s.mean_ns > light_ns;
  if (until_measured_ == 0) until_measured_ = 64;
}

void stage_output::put(std::uint32_t port, any_value&& value) {
  if (slot_.is_source) {
    if (slot_.is_unheard) return;
    slot_.origin.number = slot_.made++;
  }
  group_.put(slot_, port, std::move(value), std::as_const(slot_.origin));
}
void stage_output::put_last(std::uint32_t port, any_value&& value) {
  if (slot_.is_source) return put(port, std::move(value));
  // At its end there may be several last ones.
  if (slot_.is_replica && slot_.ticket_is_open && slot_.origin.kind != item_kind::end) {
    slot_.origin.ends_ticket = true;
    slot_.ticket_is_open = false;
    group_.put(slot_, port, std::move(value), std::move(slot_.origin));
    slot_.origin.ends_ticket = false;
    return;
  }
  // Moved, so that nobody counts who has its label.
  group_.put(slot_, port, std::move(value), std::move(slot_.origin));
}
void stage_output::put_item(std::uint32_t port, flow_item&& it) {
  group_.put(slot_, port, std::move(it.value), std::move(it.origin));
}

// What it has more, while there is room.
void flow_group::go_on(flow_slot& s) {
  for (std::uint32_t n = 0; s.has_more && s.full_outputs == 0 && !failure_ && !s.is_closing;) {
    call(s, [&](stage_output& out) { return s.what->go_on(out); });
    if ((++n % goes_before_a_look == 0 || look_every_ == 1) && until_ns_ != never_ns &&
        (*now_)() >= until_ns_)
      break;
  }
  if (s.is_closing) s.has_more = false;
  if (s.has_more)
    mark(s);
  else if (s.replacement != nullptr) [[unlikely]]
    replace_now(s);
}

// --- another function ----------------------------------------------------------------------------

void flow_group::replace(std::shared_ptr<stage_replacement> r) {
  auto* s = slots_[r->stage].get();
  if (s == nullptr || s->is_over || s->what == nullptr)
    return r->change->count(is_over_already(*r->change));
  // One after the other, each with the state of the one before.
  if (s->replacement != nullptr) replace_now(*s);
  s->replacement = std::move(r);
  if (!s->has_more && !s->is_busy) replace_now(*s);
}

void flow_group::replace_now(flow_slot& s) {
  const auto r = std::exchange(s.replacement, nullptr);
  const auto change = r->change;
  result<void> done;
  try {
    done = take_over(s.what, std::move(*r));
  } catch (const broken_invariant&) {
    throw;
  } catch (...) {
    done = what_was_thrown();
  }
  if (done) {
    s.make_before = s.make();
    s.change = change;
  }
  change->count(std::move(done));
}

// The item at hand is done with.
void flow_group::after(flow_slot& s) {
  if (const auto loop = std::exchange(s.loop_item, no_port); loop != no_port) {
    const auto entrance = graph_->feedbacks()[loop].entrance;
    if (--loops_[loop].in_flight == 0 && slots_[entrance] != nullptr) mark(*slots_[entrance]);
  }
  if (s.ticket_is_open && !s.is_over) {
    s.ticket_is_open = false;
    s.origin.ends_ticket = true;
    put(s, 0, any_value(), std::move(s.origin));
    s.origin.ends_ticket = false;
  }
  if ((s.info->is_timed || s.info->is_last) && s.what != nullptr)
    s.deadline_ns = s.what->wakes_at();
  if (!s.is_over && (s.is_closing || (s.info->may_be_over && s.what->is_over()))) over(s);
}

// Of one that a checkpoint has, whatever that says.
const std::string& flow_group::source_name(const item_origin& o) const {
  static const std::string unknown = "an unknown source";
  return o.source < graph_->stages().size() ? graph_->stages()[o.source].name : unknown;
}
std::string flow_group::name_item(const item_origin& o) const {
  auto text = fmt::format("item {} of {}", o.number, source_name(o));
  if (o.label != nullptr && !o.label->empty()) text += fmt::format(" ({})", *o.label);
  return text;
}

void flow_group::failed(flow_slot& s) {
  auto why = std::move(*s.failed);
  s.failed.reset();
  ++s.failures;
  const auto& policy = s.info->on_error;
  if (policy.what == error_policy::kind::stop || s.failures > policy.at_most) {
    if (failure_) return;
    const bool is_first = policy.what == error_policy::kind::stop;
    error e(
        why.code(),
        fmt::format("{} ({}){}: {}{}", s.info->name, flow_graph::line_of(s.info->where),
                    s.info->is_source ? "" : ": " + name_item(s.origin), why.message(),
                    is_first ? "" : fmt::format("; {} failures were to be borne", policy.at_most)));
    failure_ = flow_failure{s.info->name, std::move(e)};
    return;
  }
  count(s.counters->skipped, std::uint64_t{1});
  // At its end there is nothing to begin for, and others of its keys are still to come.
  const bool is_ending = s.inputs_ended == s.in.size() || s.origin.kind == item_kind::end;
  if (policy.what == error_policy::kind::restart && (s.is_source || !is_ending)) begin_anew(s);
  if (s.info->dead_output == no_port) return;
  dead_letter letter{s.info->name, source_name(s.origin), s.origin.number,
                     s.origin.label != nullptr ? *s.origin.label : std::string(), why.message()};
  auto origin = s.origin;
  origin.kind = item_kind::item;
  origin.ticket = origin.lane = 0;
  put(s, s.info->dead_output, any_value(std::move(letter)), std::as_const(origin));
}

// --- ends ----------------------------------------------------------------------------------------

void flow_group::end_edge(flow_edge& e) {
  if (e.is_closed) return;
  if (e.to == nullptr) {
    e.end_sent = true;
    return post(e);
  }
  e.has_ended = true;
  mark(*e.to);
}

void flow_group::close_input(flow_edge& e) {
  if (e.has_ended && e.queue.empty()) return;
  const auto left = e.queue.count;
  if (left > 0 && e.to != nullptr) count(e.to->counters->dropped, std::uint64_t{left});
  if (e.info->loop != no_port) loops_[e.info->loop].in_flight -= left;
  while (!e.queue.empty()) pop(e);
  e.has_ended = e.end_told = true;
  if (e.from == nullptr) {
    if (wire_ != nullptr) wire_->close(e.id);
    return;
  }
  close(e.id);
}

void flow_group::close(std::uint32_t edge) {
  auto* e = edges_[edge].get();
  if (e == nullptr || e->from == nullptr || e->is_closed) return;
  e->is_closed = true;
  e->outbox.clear();
  e->outbox_bytes = 0;
  if (e->is_full) room(edge);
  if (e->info->from_port != e->from->info->dead_output) output_closed(*e->from);
}

void flow_group::output_closed(flow_slot& s) {
  --s.outputs_open;
  if (s.info->loop != no_port) return loop_closed(s.info->loop);
  if (s.outputs_open == 0) needs_no_more(s);
}

// What it would make, nobody takes. Outside of run() there is nobody to tell of that: then it is
// done there.
void flow_group::needs_no_more(flow_slot& s) {
  if (s.is_over) return;
  s.is_closing = true;
  if (s.is_busy) return;
  if (now_ == nullptr) return mark(s);
  over(s);
}

// A loop of which nothing leaves any more takes nothing in.
void flow_group::loop_closed(std::uint32_t loop) {
  for (const auto& s : slots_) {
    if (s == nullptr || s->info->loop != loop || s->is_over) continue;
    for (std::uint32_t p = 0; p < s->out.size(); ++p)
      for (const auto* e : s->out[p])
        if (e->info->loop == no_port && !e->is_closed && p != s->info->dead_output) return;
  }
  auto& entrance = slots_[graph_->feedbacks()[loop].entrance];
  if (entrance != nullptr) needs_no_more(*entrance);
}

void flow_group::over(flow_slot& s) {
  s.is_over = true;
  s.has_more = false;
  if (const auto r = std::exchange(s.replacement, nullptr); r != nullptr) [[unlikely]]
    r->change->count(is_over_already(*r->change));
  --open_;
  s.counters->is_over.store(true, std::memory_order_relaxed);
  s.what.reset();
  for (auto* e : s.in)
    if (!e->end_told) close_input(*e);
  for (auto& port : s.out)
    for (auto* e : port) end_edge(*e);
}

// --- the loop ------------------------------------------------------------------------------------

// Of each item, or of one of 16 where they are made so fast that the clock would cost as much.
void flow_group::note_birth(flow_slot& s) {
  const auto now = (*now_)();
  const auto each = (now - std::exchange(s.noted_ns, now)) / s.note_every;
  s.until_noted = s.note_every = each < noted_each_ns ? 16 : 1;
  s.origin.born_ns = now;
}

bool flow_group::produce(flow_slot& s) {
  if (s.full_outputs > 0 && !s.info->looks_for_room) return false;
  if (is_closing_) {
    over(s);
    return true;
  }
  if (is_paused_ || (s.deadline_ns != never_ns && (*now_)() < s.deadline_ns)) return false;
  s.deadline_ns = never_ns;
  auto state = source_state::more;  // where it throws
  s.origin.born_ns = 0;
  if (--s.until_noted == 0) note_birth(s);
  call(s, [&](stage_output& out) {
    state = s.what->produce(out);
    return false;
  });
  if (s.is_over) return true;
  if (s.is_closing || state == source_state::over) {
    over(s);
  } else if (state == source_state::later) {
    s.deadline_ns = s.what->wakes_at();
    return false;
  }
  return true;
}

// What waits at its only input, one after the other, as long as nobody else has got something to do
// by that. How many.
std::uint32_t flow_group::take_in_a_row(flow_slot& s, std::uint32_t most) {
  auto& e = *s.in.front();
  std::uint32_t n = 0;
  has_marked_ = false;
  do {
    auto it = pop(e);
    take(s, e, std::move(it.value), std::move(it.origin), it.bytes);
  } while (++n < most && !has_marked_ && !e.queue.empty() && s.is_idle() && !failure_ &&
           n < look_every_);
  return n;
}
// The same for a source.
std::uint32_t flow_group::produce_in_a_row(flow_slot& s, std::uint32_t most) {
  std::uint32_t n = 0;
  has_marked_ = false;
  while (n < most && produce(s)) {
    ++n;
    if (has_marked_ || s.is_over || failure_ || sources_ > 1 || s.info->may_block ||
        n >= look_every_)
      break;
  }
  return n;
}

// `most` firings at most. How many; 0: there was nothing to do.
std::uint32_t flow_group::fire(flow_slot& s, std::uint32_t most) {
  if (s.is_over || s.is_busy) return 0;
  if (s.is_closing) {
    over(s);
    return 1;
  }
  if (s.is_source) return produce_in_a_row(s, most);
  if (s.in.size() == 1 && !s.has_chores && s.is_idle() && !is_held_back(s) &&
      !s.info->looks_for_room && !s.in.front()->queue.empty())
    return take_in_a_row(s, most);
  return fire_once(s) ? 1 : 0;
}

bool flow_group::has_done_all(const flow_slot& s) noexcept {
  return !s.is_over && !s.has_more && s.inputs_ended == s.in.size() && !s.what->keeps_open();
}

// False: there was nothing to do.
bool flow_group::fire_once(flow_slot& s) {
  if (s.has_more && s.full_outputs == 0) {
    go_on(s);
    if (!s.has_more) after(s);
    return true;
  }
  if (!can_be_called(s)) return false;
  if (s.deadline_ns != never_ns && (s.full_outputs == 0 || s.info->looks_for_room) &&
      (!s.info->is_last || s.has_turn) && (*now_)() >= s.deadline_ns) {
    s.deadline_ns = never_ns;
    s.has_turn = false;
    call(s, [&](stage_output& out) { return s.what->on_time((*now_)(), out); });
    if (s.has_more) go_on(s);
    if (!s.has_more) after(s);
    return true;
  }
  const auto any = std::ranges::any_of(s.in, [](const auto* e) { return !e->queue.empty(); });
  if (any || s.in.size() > 1) {
    const auto port = s.what->choose(stage_output(*this, s));
    if (port == no_port && any && s.info->looks_for_room) blocked(s);
    if (port != no_port && !s.in[port]->queue.empty()) {
      if (s.info->looks_for_room && s.counters->is_blocked.load(std::memory_order_relaxed))
        goes_on(s);
      auto it = pop(*s.in[port]);
      take(s, *s.in[port], std::move(it.value), std::move(it.origin), it.bytes);
      return true;
    }
  }
  for (std::uint32_t p = 0; p < s.in.size(); ++p) {
    auto& e = *s.in[p];
    if (!e.has_ended || e.end_told || !e.queue.empty() || s.has_more) continue;
    e.end_told = true;
    ++s.inputs_ended;
    s.ticket_is_open = false;
    s.origin.ticket = no_port;
    if (!s.is_recovered) call(s, [&](stage_output& out) { return s.what->end(p, out); });
    if (s.has_more) go_on(s);
    if (!s.has_more && !s.is_over) after(s);
    if (has_done_all(s)) over(s);
    return true;
  }
  if (has_done_all(s)) {
    over(s);
    return true;
  }
  if (s.what->is_over()) {
    over(s);
    return true;
  }
  return false;
}

// Who is furthest down; sources in turn, when nobody else has anything to do.
flow_slot* flow_group::next_ready() {
  const auto n = static_cast<std::uint32_t>(slots_.size());
  std::uint32_t first_source = no_port, next_source = no_port;
  for (auto w = ready_.size(); w-- > 0;) {
    for (auto bits = ready_[w]; bits != 0;) {
      const auto bit = 63U - static_cast<std::uint32_t>(std::countl_zero(bits));
      bits &= ~(std::uint64_t{1} << bit);
      const auto id = static_cast<std::uint32_t>(w * 64 + bit);
      auto* s = slots_[id].get();
      if (s->is_source) {
        // Descending: the last one seen is the smallest.
        first_source = id;
        if (id > source_cursor_) next_source = id;
        continue;
      }
      ready_[w] &= ~(std::uint64_t{1} << bit);
      return s;
    }
  }
  if (first_source == no_port) return nullptr;
  source_cursor_ = next_source != no_port ? next_source : first_source;
  expects(source_cursor_ < n, "the cursor is at a stage");
  ready_[source_cursor_ / 64] &= ~(std::uint64_t{1} << (source_cursor_ % 64));
  return slots_[source_cursor_].get();
}

// Nobody else has anything to do: what came from others meanwhile goes first, once.
flow_group::last_turn flow_group::turn_of_last() {
  auto turn = last_turn::none;
  for (const auto i : last_) {
    auto* s = slots_[i].get();
    if (s == nullptr || s->is_over || s->full_outputs > 0 || s->has_more ||
        s->deadline_ns == never_ns || is_held_back(*s))
      continue;
    turn = last_turn::after_messages;
    if (!last_are_next_) break;
    s->has_turn = true;
    mark(*s);
    turn = last_turn::now;
  }
  last_are_next_ = turn == last_turn::after_messages;
  return turn;
}

flow_group::state flow_group::run(const std::function<std::int64_t()>& now_ns,
                                  std::int64_t until_ns, flow_wire* wire) {
  now_ = &now_ns;
  wire_ = wire;
  until_ns_ = until_ns;
  const auto wake_timed = [&] {
    const auto now = now_ns();
    for (const auto i : timed_)
      if (slots_[i] != nullptr && slots_[i]->deadline_ns <= now) mark(*slots_[i]);
    return now;
  };
  auto state = state::idle;
  std::uint32_t fired = 0;
  auto looked_ns = wake_timed();
  ticks_ = static_cast<std::uint32_t>(looked_ns / coarse_tick_ns);
  while (!failure_) {
    auto* s = next_ready();
    if (s == nullptr) {
      const auto turn = last_.empty() ? last_turn::none : turn_of_last();
      if (turn == last_turn::now) continue;
      if (turn == last_turn::after_messages) state = state::more;
      break;
    }
    const auto n = fire(*s, look_every_ - fired);
    if (n > 0 && !s->is_over) mark(*s);
    fired += std::max(1U, n);
    if (fired < look_every_) continue;
    fired = 0;
    const auto now = wake_timed();
    // A look for each 50 us of work.
    if (now - looked_ns < 25'000 && look_every_ < looks_max) look_every_ *= 2;
    if (now - looked_ns > 100'000) look_every_ = std::max(1U, look_every_ / 2);
    looked_ns = now;
    ticks_ = static_cast<std::uint32_t>(now / coarse_tick_ns);
    // Others may have something to do for ever: what has stood long enough leaves, too.
    for (const auto i : last_) {
      auto* one = slots_[i].get();
      if (one == nullptr || one->is_over || one->full_outputs > 0 || one->deadline_ns == never_ns)
        continue;
      if (one->deadline_ns == 0) one->deadline_ns = now;
      if (now - one->deadline_ns < last_waits_ns) continue;
      one->has_turn = true;
      mark(*one);
    }
    flush();
    if (now < until_ns) continue;
    state = state::more;
    break;
  }
  flush();
  if (failure_)
    state = state::failed;
  else if (open_ == 0)
    state = state::over;
  now_ = nullptr;
  wire_ = nullptr;
  return state;
}

std::int64_t flow_group::wakes_at() const noexcept {
  auto at = never_ns;
  for (const auto i : timed_)
    // One without room is called when there is some.
    if (const auto* s = slots_[i].get(); s != nullptr && !s->is_over &&
                                         (s->full_outputs == 0 || s->info->looks_for_room) &&
                                         !(is_paused_ && s->is_source) && !is_held_back(*s))
      at = std::min(at, s->deadline_ns);
  return at;
}

void flow_group::deliver(std::uint32_t edge, std::vector<flow_item>&& items, bool is_last) {
  auto* e = edges_[edge].get();
  if (e == nullptr || e->to == nullptr) return;
  if (e->is_far) {
    for (const auto& it : items) count(e->meter->put_bytes, std::uint64_t{it.bytes});
    count(e->meter->put_items, std::uint64_t{items.size()});
  }
  if (e->to->is_over) {
    for (const auto& it : items) count(e->meter->taken_bytes, std::uint64_t{it.bytes});
    count(e->meter->taken_items, std::uint64_t{items.size()});
    count(e->to->counters->dropped, std::uint64_t{items.size()});
    return;
  }
  for (const auto& it : items) e->queued_bytes += it.bytes;
  e->queue.push(std::move(items));
  e->has_ended = e->has_ended || is_last;
  mark(*e->to);
}

void flow_group::pause(bool is_paused, bool is_held) {
  is_paused_ = is_paused;
  is_held_ = is_held;
  for (auto& s : slots_)
    if (s != nullptr && !s->is_over) mark(*s);
}

void flow_group::look(std::uint32_t stage) {
  if (auto* s = slots_[stage].get(); s != nullptr && !s->is_over) mark(*s);
}

void flow_group::finish() {
  is_closing_ = true;
  for (auto& s : slots_)
    if (s != nullptr && s->info->is_source && !s->is_over) {
      s->deadline_ns = never_ns;
      mark(*s);
    }
}

}  // namespace troupe
