// What a group does for stages that are lost with their process.

#include "troupe/runtime/flow/flow_counting.hpp"
#include "troupe/runtime/flow/flow_group.hpp"
#include "troupe/runtime/flow/kept_replicas.hpp"
#include "troupe/runtime/flow/recovered_replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe {

void flow_group::lose(const std::vector<std::uint32_t>& stages) {
  for (const auto i : stages) {
    const auto& lost = graph_->stages()[i];
    for (const auto& port : lost.out)
      for (const auto id : port) {
        auto* e = edges_[id].get();
        if (e == nullptr || e->to == nullptr) continue;
        e->has_ended = true;
        if (!e->to->is_over) mark(*e->to);
      }
    // The deal and the gather are here, each at one end of it.
    auto* in = lost.in.size() == 1 ? edges_[lost.in[0]].get() : nullptr;
    if (in == nullptr || in->from == nullptr) continue;
    // Behind those that it is chained to.
    auto last = i;
    const auto next = [&] {
      const auto& port = graph_->stages()[last].out[0];
      return port.size() == 1 ? port[0] : no_port;
    };
    while (next() != no_port && graph_->stages()[graph_->edges()[next()].to].is_elsewhere)
      last = graph_->edges()[next()].to;
    auto* out = next() == no_port ? nullptr : edges_[next()].get();
    close(in->id);
    // One that is over: all has been done.
    if (in->from->what == nullptr || out == nullptr || out->to == nullptr ||
        out->to->what == nullptr)
      continue;
    deal_again(*edges_[in->from->info->in[0]], made_again(*in, *out));
    mark(*in->from);
    if (!out->to->is_over) mark(*out->to);
  }
}

namespace {

// The last one that waits goes, as if it had been taken.
void drop_last(flow_edge& e) {
  const auto it = e.queue.pop_back();
  e.queued_bytes -= it.bytes;
  count(e.meter->taken_bytes, std::uint64_t{it.bytes});
  count(e.meter->taken_items, std::uint64_t{1});
}

}  // namespace

// Before a deal waits, in front of all else, what was dealt to replicas that are lost: in the order
// of the tickets, whoever had them, since a gather may wait for the first one.
void flow_group::deal_again(flow_edge& before, std::vector<flow_item>&& again) {
  // Not taken yet, then. Their bytes were counted by whoever put them, and stay so.
  for (auto& it : again) it.bytes = 0;
  auto waiting = again.size();
  std::vector<std::uint32_t> loaded;  // lanes that have a newer state
  for (const auto& it : again)
    if (it.origin.kind == item_kind::load) loaded.push_back(it.origin.lane);
  while (!before.queue.empty() && before.queue.front().origin.is_again) {
    auto it = before.queue.pop();
    if (it.origin.kind == item_kind::load && std::ranges::count(loaded, it.origin.lane) > 0)
      --waiting;
    else
      again.push_back(std::move(it));
  }
  std::ranges::stable_sort(again, [](const flow_item& a, const flow_item& b) {
    const auto rank = [](const flow_item& it) {
      return it.origin.kind == item_kind::load ? 0 : it.origin.kind == item_kind::end ? 2 : 1;
    };
    return rank(a) != rank(b) ? rank(a) < rank(b) : is_before(a.origin.ticket, b.origin.ticket);
  });
  before.meter->taken_items.fetch_sub(waiting);
  before.queue.push_front(std::move(again));
}

// A replica is lost: `in` led to it from its deal, `out` to its gather. What is dealt again.
std::vector<flow_item> flow_group::made_again(flow_edge& in, flow_edge& out) {
  auto& deal = *in.from->what;
  auto& gather = *out.to->what;
  if (auto* lanes = dynamic_cast<recovering_deal*>(&deal)) {
    auto again = lanes->lose(in.info->from_port);
    if (!again) return {};
    const auto& lost = graph_->stages()[in.info->to];
    if (lanes->is_given_up(in.info->from_port) && !failure_)
      failure_ = flow_failure{
          lost.name,
          error(error_code::failed,
                fmt::format("{} ({}): its state was too large to be kept for its loss (1 GiB)",
                            lost.name, flow_graph::line_of(lost.where)))};
    while (!out.queue.empty()) drop_last(out);
    dynamic_cast<recovering_gather&>(gather).lose(out.info->to_port);
    return std::move(*again);
  }
  auto& keeps = dynamic_cast<keeping_deal&>(deal);
  auto& gathers = dynamic_cast<keeping_gather&>(gather);
  // What came of a ticket that did not end comes again.
  while (!out.queue.empty() && !out.queue.blocks.back().back().origin.ends_ticket) drop_last(out);
  std::uint64_t ended = 0;
  for (std::size_t b = 0; b < out.queue.blocks.size(); ++b) {
    const auto& block = out.queue.blocks[b];
    for (std::size_t k = b == 0 ? out.queue.first : 0; k < block.size(); ++k)
      ended += block[k].origin.ends_ticket ? 1 : 0;
  }
  gathers.lose(out.info->to_port, ended > 0, keeps.next_ticket());
  return keeps.lose(in.info->from_port, gathers.ended(out.info->to_port) + ended);
}

}  // namespace troupe
