#include "tools/troupe-tool/timeline.hpp"

#include "tools/troupe-tool/near_names.hpp"
#include "troupe/runtime/insight/actor_record.hpp"
#include "troupe/runtime/text/json_line.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace troupe {

namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::int64_t place_max_ns = std::int64_t{1} << 50;  // 13 days; a double has it exactly
constexpr std::size_t first_row = 1000;  // threads of transfers are numbered from here

std::string quoted(const std::string& text) { return json_line(nlohmann::json(text)); }

// An item on an edge of one epoch of a job.
struct item_key {
  std::uint32_t job = 0;  // number of (job, epoch) in this file
  std::uint32_t edge = 0;
  std::uint64_t step = 0;
  friend auto operator<=>(const item_key&, const item_key&) = default;
};
struct item_end {
  item_key item;
  std::size_t process = 0, thread = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  // of its slice
  std::int64_t last_ns() const noexcept { return std::max(begin_ns, end_ns - 1); }
};

// What one actor of one process did for a step, on its worker and on a device.
struct work_key {
  std::size_t process = 0;
  std::uint32_t actor = trace_nobody;
  std::uint64_t step = 0;
  friend auto operator<=>(const work_key&, const work_key&) = default;
};

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15U;
  return h ^ (h >> 29);
}

// An actor, ready to be written.
struct drawn_actor {
  const traced_actor* actor = nullptr;
  std::string name, details;  // JSON: quoted; members of args
  std::uint32_t job = 0;      // as in item_key
  bool has_job = false;
  bool is_hidden = false;  // of another job than is asked for
};

class timeline_writer {
 public:
  timeline_writer(const cluster_recording& r, const std::string& job,
                  const std::function<void(std::string_view)>& put)
      : recording_(r), job_(job), put_(put) {}

  timeline_summary write() {
    add("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (const auto& n : recording_.nodes)
      start_ns_ = std::min(start_ns_, n.began_ns - n.clock.ahead_ns);
    for (std::size_t i = 0; i < recording_.nodes.size(); ++i) meet(i);
    for (std::size_t i = 0; i < recording_.nodes.size(); ++i) write_node(i);
    write_arrows();
    write_arrows_of_devices();
    add("\n],\"otherData\":{}}}\n", json_line(other_data()));
    flush(0);
    return summary_;
  }

 private:
  template <class... Ts>
  void add(fmt::format_string<Ts...> text, Ts&&... values) {
    fmt::format_to(std::back_inserter(buffer_), text, std::forward<Ts>(values)...);
    flush(piece_bytes);
  }
  void flush(std::size_t beyond) {
    if (buffer_.size() <= beyond) return;
    put_({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }
  const char* comma() { return std::exchange(has_events_, true) ? ",\n" : "\n"; }

  // --- who is there ------------------------------------------------------------------------------

  void meet(std::size_t process) {
    const auto& n = recording_.nodes[process];
    auto& drawn = actors_.emplace_back();
    for (const auto& [number, a] : n.actors) {
      auto& d = drawn[number];
      d.actor = &a;
      d.name = quoted(a.name.empty() ? "(of a part that is gone)" : a.name);
      const auto part = n.parts.find(a.part);
      if (a.part == 0) continue;
      if (part == n.parts.end()) {
        d.is_hidden = !job_.empty();
        continue;
      }
      const auto& p = part->second;
      d.has_job = true;
      d.job = jobs_.try_emplace({p.job, p.epoch}, static_cast<std::uint32_t>(jobs_.size()))
                  .first->second;
      d.is_hidden =
          !job_.empty() && p.job_name != job_ && fmt::format("{:016x}", raw(p.job)) != job_;
      d.details = fmt::format("\"type\":{},\"job\":{}", quoted(a.type), quoted(p.job_name));
      for (const auto e : a.inputs) taken_by_.try_emplace({d.job, e}, &a);
      for (const auto e : a.outputs) emitted_by_.try_emplace({d.job, e}, &a);
    }
    for (const auto& l : n.lanes)
      for (const auto& e : l.events)
        if (is_device_work(e.kind)) has_devices_.emplace(process, e.actor);
  }

  const drawn_actor* find(std::size_t process, std::uint32_t number) const {
    const auto at = actors_[process].find(number);
    return at != actors_[process].end() ? &at->second : nullptr;
  }

  std::string name_of(node_id id) const {
    const auto at = std::ranges::find(recording_.nodes, id, &node_recording::id);
    return at != recording_.nodes.end() ? at->name : fmt::format("node {:016x}", raw(id));
  }

  // --- a node ------------------------------------------------------------------------------------

  // Nanoseconds from the start. What lies before it or far behind no recording can have.
  std::int64_t place(const node_recording& n, std::int64_t there_ns) const {
    return std::clamp<std::int64_t>(there_ns - n.clock.ahead_ns - start_ns_, 0, place_max_ns);
  }

  void write_node(std::size_t i) {
    const auto& n = recording_.nodes[i];
    std::set<std::string> tasks;
    for (const auto& [number, p] : n.parts)
      if (job_.empty() || p.job_name == job_ || fmt::format("{:016x}", raw(p.job)) == job_)
        tasks.insert(p.task);
    add("{}{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}", comma(),
        i + 1,
        quoted(tasks.empty() ? n.name : fmt::format("{} {}", n.name, fmt::join(tasks, " "))));
    add("{}{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_labels\",\"args\":{{\"labels\":{}}}}}",
        comma(), i + 1, quoted(fmt::format("{}, pid {}", n.kind, n.pid)));
    add("{}{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{}}}}}",
        comma(), i + 1, i);
    for (std::size_t lane = 0; lane < n.lanes.size(); ++lane) {
      write_thread(i, lane + 1, n.lanes[lane].name);
      write_lane(i, lane + 1, n.lanes[lane]);
    }
    write_transfers(i);
  }

  void write_thread(std::size_t process, std::size_t thread, const std::string& name) {
    add("{}{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}",
        comma(), process + 1, thread, quoted(name));
    add("{}{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{}}}}}",
        comma(), process + 1, thread, thread);
  }

  void write_slice(std::size_t process, std::size_t thread, std::int64_t begin, std::int64_t end,
                   std::string_view category, std::string_view name, std::string_view args) {
    const auto length = end - begin;
    add("{}{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03},\"cat\":\"{}\",\"name\":{},\"args\":{{{}}}}}",
        comma(), process + 1, thread, begin / 1000, begin % 1000, length / 1000, length % 1000,
        category, name, args);
  }

  void write_lane(std::size_t process, std::size_t thread, const traced_lane& l) {
    const auto& n = recording_.nodes[process];
    auto last = place(n, n.began_ns);  // TI-2, whatever the node says
    for (std::size_t i = 0; i < l.events.size(); ++i) {
      const auto& e = l.events[i];
      if (e.kind == trace_kind::transfer) continue;
      const auto begin = std::max(last, place(n, e.begin_ns)),
                 end = std::max(begin, place(n, e.end_ns));
      last = end;
      if (e.kind == trace_kind::idle)
        write_wait(process, thread, begin, end, l, i + 1);
      else if (const auto* a = find(process, e.actor); a != nullptr && !a->is_hidden)
        write_event(process, thread, begin, end, e, *a);
    }
    if (n.ended_ns == 0 || place(n, n.ended_ns) <= last) return;
    if (const auto* a = find(process, l.running); a != nullptr && !a->is_hidden) {
      write_slice(process, thread, last, place(n, n.ended_ns), to_string(a->actor->kind), a->name,
                  a->details + (a->details.empty() ? "" : ",") + "\"is_finished\":false");
      ++summary_.slices;
    } else if (l.is_asleep) {
      write_wait(process, thread, last, place(n, n.ended_ns), l, l.events.size());
    }
  }

  void write_event(std::size_t process, std::size_t thread, std::int64_t begin, std::int64_t end,
                   const traced_event& e, const drawn_actor& a) {
    if (e.kind == trace_kind::turn)
      return write_slice(process, thread, begin, end, "actor", a.name, "");
    ++summary_.slices;
    if (is_device_work(e.kind)) return write_device_work(process, thread, begin, end, e, a);
    const auto category = e.kind == trace_kind::open   ? "open"
                          : e.kind == trace_kind::emit ? "emit"
                                                       : to_string(a.actor->kind);
    auto args = fmt::format("{}{}\"step\":{}", a.details, a.details.empty() ? "" : ",", e.step);
    if (const auto what = wait_of(e, a); !what.empty()) args += ",\"waited_for\":" + quoted(what);
    write_slice(process, thread, begin, end, category, a.name, args);
    if (!a.has_job) return;
    if (has_devices_.contains({process, e.actor}))
      fired_.try_emplace({process, e.actor, e.step}, item_end{{}, process, thread, begin, end});
    const auto& t = *a.actor;
    if (e.kind == trace_kind::firing || e.kind == trace_kind::apply)
      for (std::size_t port = 0; port < t.inputs.size(); ++port)
        if (e.where == trace_event::everywhere || e.where == port)
          taken_.push_back({{a.job, t.inputs[port], e.step}, process, thread, begin, end});
    if (e.kind == trace_kind::firing || e.kind == trace_kind::emit)
      for (std::size_t i = 0; i < t.outputs.size(); ++i)
        if (e.kind == trace_kind::firing || e.where == t.ports[i])
          emitted_.push_back({{a.job, t.outputs[i], e.step}, process, thread, begin, end});
  }

  void write_device_work(std::size_t process, std::size_t thread, std::int64_t begin,
                         std::int64_t end, const traced_event& e, const drawn_actor& a) {
    auto args = fmt::format("{}{}\"step\":{}", a.details, a.details.empty() ? "" : ",", e.step);
    if (e.kind == trace_kind::replay) args += fmt::format(",\"kernels\":{}", e.where);
    if (e.kind == trace_kind::copy) args += fmt::format(",\"bytes\":{}", e.bytes);
    const bool is_named = e.kind == trace_kind::kernel && e.where < a.actor->kernels.size();
    write_slice(process, thread, begin, end,
                e.kind == trace_kind::copy     ? "memcpy"
                : e.kind == trace_kind::replay ? "replay"
                                               : "kernel",
                is_named ? quoted(a.actor->kernels[e.where]) : a.name, args);
    if (a.has_job)
      ran_.try_emplace({process, e.actor, e.step}, item_end{{}, process, thread, begin, end});
  }

  // What the stream waited for is what the actor had waited for that ran next.
  void write_wait(std::size_t process, std::size_t thread, std::int64_t begin, std::int64_t end,
                  const traced_lane& l, std::size_t next) {
    std::string args;
    while (next < l.events.size() &&
           (l.events[next].kind == trace_kind::idle || l.events[next].kind == trace_kind::transfer))
      ++next;
    if (l.is_stream && next < l.events.size())
      if (const auto* a = find(process, l.events[next].actor); a != nullptr && !a->is_hidden) {
        const auto what = wait_of(l.events[next], *a);
        args = fmt::format("\"next\":{},\"step\":{}", a->name, l.events[next].step);
        if (!what.empty()) args += ",\"waited_for\":" + quoted(what);
      }
    write_slice(process, thread, begin, end, "wait", l.is_stream ? "\"waiting\"" : "\"idle\"",
                args);
  }

  // "input in0, from a", "a credit of out1, to b".
  std::string wait_of(const traced_event& e, const drawn_actor& a) const {
    const auto state = actor_record::state_of(e.waited);
    std::size_t port = actor_record::port_of(e.waited);
    const auto& t = *a.actor;
    if (actor_record::is_buffer_wait(e.waited)) return "memory that others read";
    if (state == actor_state::waiting_for_input) {
      if (t.kind == actor_kind::feed) return "the program";
      if (port >= t.inputs.size()) return {};
      const auto from = emitted_by_.find({a.job, t.inputs[port]});
      return fmt::format("input in{}{}", port,
                         from != emitted_by_.end() ? ", from " + from->second->name : "");
    }
    if (state != actor_state::waiting_for_credit) return {};
    port -= std::min(port, t.kind == actor_kind::feed ? 1 : t.inputs.size());
    if (port >= t.outputs.size()) return t.kind == actor_kind::fetch ? "the program" : "";
    const auto to = taken_by_.find({a.job, t.outputs[port]});
    return fmt::format("a credit of out{}{}", t.ports[port],
                       to != taken_by_.end() ? ", to " + to->second->name : "");
  }

  // --- transfers: each in the first row of its peer that is free again ---------------------------

  void write_transfers(std::size_t process) {
    const auto& n = recording_.nodes[process];
    std::map<node_id, std::vector<const traced_event*>> by_peer;
    for (const auto& l : n.lanes)
      for (const auto& e : l.events)
        if (const auto* a = e.kind == trace_kind::transfer ? find(process, e.actor) : nullptr;
            a != nullptr && !a->is_hidden)
          by_peer[a->actor->peer].push_back(&e);
    auto thread = first_row;
    for (auto& [peer, events] : by_peer) {
      std::ranges::stable_sort(events, {}, &traced_event::begin_ns);
      std::vector<std::int64_t> free_at;
      for (const auto* e : events) {
        const auto begin = place(n, e->begin_ns), end = std::max(begin, place(n, e->end_ns));
        const auto row = static_cast<std::size_t>(
            std::ranges::find_if(free_at, [begin](auto t) { return t <= begin; }) -
            free_at.begin());
        if (row == free_at.size()) {
          free_at.push_back(0);
          write_thread(
              process, thread + row,
              row == 0 ? "to " + name_of(peer) : fmt::format("to {} ({})", name_of(peer), row + 1));
        }
        free_at[row] = end;
        ++summary_.slices;
        const auto& a = *find(process, e->actor);
        write_slice(process, thread + row, begin, end, "transfer", a.name,
                    fmt::format("{}{}\"step\":{},\"bytes\":{}{}", a.details,
                                a.details.empty() ? "" : ",", e->step, e->bytes,
                                a.actor->outputs.empty()
                                    ? ""
                                    : fmt::format(",\"edge\":{}", a.actor->outputs.front())));
      }
      thread += free_at.size();
    }
  }

  // --- arrows ------------------------------------------------------------------------------------

  // TI-3. An item is emitted once and taken once; what a shard is handed over may share its step
  // with a gradient.
  void write_arrows() {
    const auto order = [](const item_end& a, const item_end& b) {
      return std::pair(a.item, a.begin_ns) < std::pair(b.item, b.begin_ns);
    };
    std::ranges::sort(emitted_, order);
    std::ranges::sort(taken_, order);
    std::vector<std::pair<job_id, std::uint32_t>> jobs(jobs_.size());
    for (const auto& [id, number] : jobs_) jobs[number] = id;
    auto to = taken_.begin();
    for (auto from = emitted_.begin(); from != emitted_.end(); ++from) {
      if (from != emitted_.begin() && std::prev(from)->item == from->item) continue;
      to =
          std::find_if(to, taken_.end(), [&](const item_end& t) { return !(t.item < from->item); });
      if (to == taken_.end()) return;
      if (to->item != from->item || was_cut_off(*from, *to)) continue;
      const auto& [job, epoch] = jobs[from->item.job];
      write_arrow(*from, *to,
                  mix(mix(mix(mix(0, raw(job)), epoch), from->item.edge), from->item.step));
    }
  }

  // A slice that began before its node recorded begins with the recording: what it had emitted
  // until then may have been taken before.
  bool was_cut_off(const item_end& from, const item_end& to) const {
    const auto& n = recording_.nodes[from.process];
    return from.begin_ns > to.last_ns() && from.begin_ns <= place(n, n.began_ns);
  }

  // Between the slice of a firing and that of the work which it gave a device, from what began
  // first.
  void write_arrows_of_devices() {
    for (const auto& [work, ran] : ran_) {
      const auto fired = fired_.find(work);
      if (fired == fired_.end()) continue;
      const auto id =
          mix(mix(mix(1, raw(recording_.nodes[work.process].id)), work.actor), work.step);
      const bool is_first = fired->second.begin_ns <= ran.begin_ns;
      write_arrow(is_first ? fired->second : ran, is_first ? ran : fired->second, id);
    }
  }

  // Somewhere in its slice an item was emitted, and somewhere in its slice taken, but not before
  // that: a slice has the time from its begin to before its end.
  void write_arrow(const item_end& from, const item_end& to, std::uint64_t id) {
    const auto emitted_ns = std::min(from.last_ns(), std::max(from.begin_ns, to.begin_ns));
    write_end(from, emitted_ns, "s", id, "");
    write_end(to, std::max(to.begin_ns, std::min(to.last_ns(), emitted_ns)), "f", id,
              "\"bp\":\"e\",");
    ++summary_.arrows;
  }

  void write_end(const item_end& e, std::int64_t at_ns, const char* phase, std::uint64_t id,
                 const char* more) {
    add("{}{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"id\":\"0x{:x}\",{}\"cat\":\"item\",\"name\":\"item\"}}",
        comma(), phase, e.process + 1, e.thread, at_ns / 1000, at_ns % 1000, id, more);
  }

  // --- the rest ----------------------------------------------------------------------------------

  nlohmann::json other_data() {
    nlohmann::json out;
    out["troupe_version"] = std::string(version());
    out["cluster"] = recording_.cluster;
    out["seconds"] = double(recording_.duration_ns) / 1e9;
    out["job"] = job_;
    out["nodes"] = nlohmann::json::array();
    for (const auto& n : recording_.nodes) {
      nlohmann::json lost = nlohmann::json::object();
      for (const auto& l : n.lanes)
        if (l.lost > 0) lost[l.name] = l.lost;
      out["nodes"].push_back({{"name", n.name},
                              {"pid", n.pid},
                              {"clock_ahead_seconds", double(n.clock.ahead_ns) / 1e9},
                              {"clock_error_seconds", double(n.clock.error_ns) / 1e9},
                              {"is_whole", n.is_whole},
                              {"events_lost", n.lost()},
                              {"events_lost_by_thread", std::move(lost)},
                              {"events_left_out", n.left_out}});
      summary_.lost += n.lost();
    }
    out["events_lost"] = summary_.lost;
    out["silent"] = nlohmann::json::array();
    for (const auto& s : recording_.silent)
      out["silent"].push_back({{"name", s.name}, {"reason", s.reason}});
    return out;
  }

  const cluster_recording& recording_;
  const std::string& job_;
  const std::function<void(std::string_view)>& put_;
  fmt::memory_buffer buffer_;
  bool has_events_ = false;
  std::int64_t start_ns_ = std::numeric_limits<std::int64_t>::max();
  std::map<std::pair<job_id, std::uint32_t>, std::uint32_t> jobs_;  // number of (job, epoch)
  std::vector<std::map<std::uint32_t, drawn_actor>> actors_;        // by process
  // (job, edge)
  std::map<std::pair<std::uint32_t, std::uint32_t>, const traced_actor*> taken_by_, emitted_by_;
  std::vector<item_end> emitted_, taken_;
  // Actors, by process, that devices worked for.
  std::set<std::pair<std::size_t, std::uint32_t>> has_devices_;
  // Of those: the first slice of each step on the worker, and on a device.
  std::map<work_key, item_end> fired_, ran_;
  timeline_summary summary_;
};

}  // namespace

timeline_summary write_timeline(const cluster_recording& r, const std::string& job,
                                const std::function<void(std::string_view)>& put) {
  return timeline_writer(r, job, put).write();
}

outcome answer_timeline(const command& c, const cluster_recording& r, const timeline_summary& s) {
  outcome o;
  for (const auto& n : r.nodes) {
    for (const auto& l : n.lanes)
      if (l.lost > 0)
        o.err += fmt::format(
            "troupe: node {}, {}: {} events came faster than they could be fetched, and are missing\n",
            n.name, l.name, l.lost);
    if (n.left_out > 0)
      o.err += fmt::format("troupe: node {}: {} events are missing: a timeline has at most {}\n",
                           n.name, n.left_out, trace_events_max);
  }
  for (const auto& n : r.silent)
    o.err += fmt::format("troupe: node {} did not answer{}{}: what it did is missing here\n",
                         n.name, n.reason.empty() ? "" : ": ", n.reason);
  o.err += fmt::format(
      "troupe: {} s of {} node{}: {} slices, {} arrows{}\n", double(r.duration_ns) / 1e9,
      r.nodes.size(), r.nodes.size() == 1 ? "" : "s", s.slices, s.arrows,
      s.slices == 0 ? (c.id.empty() ? ": nothing ran meanwhile"
                                    : fmt::format(": nothing of job '{}' ran meanwhile", c.id))
                    : "");
  if (!r.silent.empty() || s.lost > 0) o.exit_code = static_cast<int>(error_code::timed_out);
  return o;
}

result<void> check_job(const std::string& name, const std::vector<job_snapshot>& jobs) {
  std::vector<std::string> names;
  for (const auto& j : jobs) {
    if (name == j.name || name == j.id) return {};
    names.push_back(j.name);
  }
  if (name.empty()) return {};
  return error(error_code::not_found,
               fmt::format("there is no job '{}' here{}", name, did_you_mean(name, names)));
}

std::string progress_line(const command& c, const record_progress& p) {
  return fmt::format("recording {:.1f} of {} s on {} node{}, {} events", double(p.elapsed_ns) / 1e9,
                     double(c.duration_ns) / 1e9, p.nodes, p.nodes == 1 ? "" : "s", p.events);
}

}  // namespace troupe
