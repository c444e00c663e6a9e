// An edge whose two ends take and make different memory goes through copies: from a device to the
// host, from the host to a device, or across between two devices of a node.
//
// A copy stands on the device whose stream makes it: out of a device's memory on that device, into
// it, and across, on the one that takes it. Between devices of two nodes an item goes out, by a
// send and a receive (partition), and in.

#include "troupe/runtime/compile/passes/passes.hpp"
#include "troupe/runtime/plan/segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace troupe::passes {
namespace {

class copier {
 public:
  copier(draft d, pass_report* report, std::vector<placement_reason>* reasons)
      : d_(std::move(d)), report_(report), reasons_(reasons) {}

  draft run() {
    const auto count = d_.actors.size();
    for (std::uint32_t c = 0; c < count; ++c)
      for (std::size_t port = 0; port < d_.actors[c].from.size() && !reads_device(c); ++port)
        d_.actors[c].from[port] = behind_read(d_.actors[c].from[port]);
    drop_reads();
    const auto left = d_.actors.size();
    for (std::uint32_t c = 0; c < left; ++c)
      for (std::size_t port = 0; port < d_.actors[c].from.size(); ++port) {
        // Between ranks.
        if (const auto& taker = d_.actors[c].planned.collective;
            taker && port >= taker->own_inputs())
          continue;
        const auto from = reach(d_.actors[c].from[port], c);
        d_.actors[c].from[port] = from;
      }
    return std::move(d_);
  }

 private:
  // Where consumer `c` finds what `from` makes.
  port_ref reach(port_ref from, std::uint32_t c) {
    const auto &p = d_.actors[from.actor].planned, &to = d_.actors[c].planned;
    const bool is_made_there = makes_device_memory(p), is_taken_there = takes_device_memory(to);
    const auto task = to.task, stream = to.stream;
    if (!is_made_there && !is_taken_there) return from;
    if (is_made_there && is_taken_there && p.task == task) {
      if (p.stream == stream) return from;
      return copy(copy_kind::across, from, task, stream);
    }
    if (is_made_there) from = copy(copy_kind::out, from, p.task, p.stream);
    return is_taken_there ? copy(copy_kind::in, from, task, stream) : from;
  }

  // What hands a device's variable on to a worker would stand on the host: the worker's ops take
  // versions right from the variable, or from a copy, and it is left out.
  bool reads_device(std::uint32_t i) const {
    const auto& a = d_.actors[i];
    if (a.planned.kind != actor_kind::op || a.planned.ops.size() != 1 ||
        a.planned.ops[0].type != "read")
      return false;
    const auto& shard = d_.actors[a.from[0].actor].planned;
    return shard.kind == actor_kind::shard && is_device_stream(shard.stream);
  }
  port_ref behind_read(port_ref from) const {
    return reads_device(from.actor) ? d_.actors[from.actor].from[0] : from;
  }

  void drop_reads() {
    std::vector<std::uint32_t> now(d_.actors.size());
    std::vector<placement_reason> why;
    draft out;
    std::uint32_t next = 0;
    std::vector<bool> is_gone(d_.actors.size());
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      is_gone[i] = reads_device(i);
      now[i] = next;
      next += is_gone[i] ? 0 : 1;
    }
    if (next == d_.actors.size()) return;
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      if (is_gone[i]) continue;
      if (reasons_ != nullptr && i < reasons_->size()) why.push_back(std::move((*reasons_)[i]));
      out.actors.push_back(std::move(d_.actors[i]));
    }
    for (auto& a : out.actors)
      for (auto& f : a.from) f.actor = now[f.actor];
    if (reasons_ != nullptr) *reasons_ = std::move(why);
    d_ = std::move(out);
  }

  port_ref copy(copy_kind kind, port_ref from, std::uint32_t task, std::uint32_t stream) {
    const auto next = static_cast<std::uint32_t>(d_.actors.size());
    const auto [at, is_new] = made_.try_emplace({kind, from.actor, from.port, task, stream}, next);
    if (!is_new) return {at->second, 0};
    const auto where = kind == copy_kind::out
                           ? std::string(to_string(kind))
                           : fmt::format("{}/{}/{}", to_string(kind), task, stream_text(stream));
    auto a = make_handing_on(actor_kind::copy, d_.actors[from.actor], from, where);
    a.planned.copy = kind;
    a.planned.task = task;
    a.planned.stream = stream;
    a.from = {from};
    if (report_ != nullptr)
      report_->add(a.planned.name, a.planned.source, [&] {
        const auto& spec = a.planned.output_specs[0];
        return fmt::format("is put in: it copies {} {} {}, {} bytes for each item", to_string(spec),
                           kind == copy_kind::out ? "from" : "to", stream_text(stream),
                           spec.size_bytes());
      });
    d_.actors.push_back(std::move(a));
    return {next, 0};
  }

  draft d_;
  pass_report* report_;
  std::vector<placement_reason>* reasons_;
  std::map<std::tuple<copy_kind, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>,
           std::uint32_t>
      made_;
};

}  // namespace

draft copies(draft d, pass_report* report, std::vector<placement_reason>* reasons) {
  const auto is_on_device = [](const auto& a) { return is_device_stream(a.planned.stream); };
  if (std::none_of(d.actors.begin(), d.actors.end(), is_on_device)) return d;
  return copier(std::move(d), report, reasons).run();
}

}  // namespace troupe::passes
