// An edge whose two ends take and make different memory goes through copies: from a device to the host, from the host to a device, or across between two devices of a node.
//
// A copy stands on the device whose stream makes it: out of a device's memory on that device, into it, and across, on the one that takes it. Between devices of two nodes an item goes
// out, by a send and a receive (partition), and in.

#include "runtime/passes/passes.hpp"
#include "runtime/segment.hpp"

#include <fmt/format.h>

#include <map>
#include <tuple>
#include <utility>

namespace troupe::passes {
namespace {

class copier {
 public:
  copier(draft d, pass_report* report) : d_(std::move(d)), report_(report) {}

  draft run() {
    const auto count = d_.actors.size();
    for (std::uint32_t c = 0; c < count; ++c)
      for (std::size_t port = 0; port < d_.actors[c].from.size(); ++port) {
        const auto from = reach(d_.actors[c].from[port], c);
        d_.actors[c].from[port] = from;
      }
    return std::move(d_);
  }

 private:
  // Where consumer `c` finds what `from` makes.
  port_ref reach(port_ref from, std::uint32_t c) {
    const auto &p = d_.actors[from.actor].planned, &to = d_.actors[c].planned;
    const bool is_made_there = makes_device_memory(p), is_taken_there = is_device_stream(to.stream);
    const auto task = to.task, stream = to.stream;
    if (!is_made_there && !is_taken_there) return from;
    if (is_made_there && is_taken_there && p.task == task) {
      if (p.stream == stream) return from;
      return copy(copy_kind::across, from, task, stream);
    }
    if (is_made_there) from = copy(copy_kind::out, from, p.task, p.stream);
    return is_taken_there ? copy(copy_kind::in, from, task, stream) : from;
  }

  port_ref copy(copy_kind kind, port_ref from, std::uint32_t task, std::uint32_t stream) {
    const auto next = static_cast<std::uint32_t>(d_.actors.size());
    const auto [at, is_new] = made_.try_emplace({kind, from.actor, from.port, task, stream}, next);
    if (!is_new) return {at->second, 0};
    const auto where = kind == copy_kind::out ? std::string(to_string(kind)) : fmt::format("{}/{}/{}", to_string(kind), task, stream_text(stream));
    auto a = make_handing_on(actor_kind::copy, d_.actors[from.actor], from, where);
    a.planned.copy = kind;
    a.planned.task = task;
    a.planned.stream = stream;
    a.from = {from};
    if (report_ != nullptr)
      report_->add(a.planned.name, a.planned.source, [&] {
        const auto& spec = a.planned.output_specs[0];
        return fmt::format("is put in: {} goes {} {}, {} bytes an item", to_string(spec), kind == copy_kind::out ? "from" : "to", stream_text(stream), spec.size_bytes());
      });
    d_.actors.push_back(std::move(a));
    return {next, 0};
  }

  draft d_;
  pass_report* report_;
  std::map<std::tuple<copy_kind, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> made_;
};

}  // namespace

draft copies(draft d, pass_report* report) { return copier(std::move(d), report).run(); }

}  // namespace troupe::passes
