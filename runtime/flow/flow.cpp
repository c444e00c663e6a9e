#include "troupe/runtime/flow/flow.hpp"

#include "troupe/runtime/flow/kept_replicas.hpp"
#include "troupe/runtime/plan/device_name.hpp"

#include <algorithm>

namespace troupe {
namespace {

// Items that wait before a replica: few, so that one that is slow keeps few from the others.
constexpr std::uint64_t replica_items_max = 16;

stage_info common(const new_stage& s, const stage_options& o, const source_location& where) {
  stage_info info;
  info.name = !o.name.empty() ? o.name : stage_name(*s.function, s.kind);
  info.kind = s.kind;
  info.where = where;
  info.is_named = !o.name.empty();
  info.make = s.make;
  info.outputs = s.outputs;
  info.rate = s.rate;
  info.holds = s.holds;
  info.on_error = o.on_error;
  info.may_block = o.blocks;
  info.may_be_over = false;  // functions work on whatever comes
  info.on = o.on;
  info.travels = s.travels;
  return info;
}

// What can be said of `.on` before a cluster is seen.
void check_place(flow_graph& g, const stage_info& s) {
  if (s.on.empty()) return;
  const auto refuse = [&](const std::string& why) {
    g.note_mistake(error(error_code::usage, s.name + ": " + why).at(s.where));
  };
  const auto place = parse_device(s.on);
  if (!place) return refuse(".on: " + place.error().message());
  if (place->cpu || place->gpu)
    return refuse(".on = \"" + s.on + "\": a function has no device; leave that part out");
  if (s.travels == nullptr)
    return refuse("a " + s.kind +
                  " runs in the program; map, for_each and partition_by go to nodes");
  if (s.travels->in == nullptr)
    return refuse(
        "its items do not go over a wire: they are neither numbers, texts, tensors, containers of "
        "such, nor structs that list their fields");
  if (s.travels->makes_items && s.travels->out == nullptr)
    return refuse(
        "what it makes does not go over a wire: it is neither numbers, texts, tensors, containers "
        "of such, nor a struct that lists its fields");
  if (!s.travels->prototype)
    return refuse("its function has members that do not go over a wire: list them as fields");
}

void add_dead_letters(flow_graph& g, std::uint32_t stage,
                      const std::optional<flow<dead_letter>>& letters) {
  if (!letters) return;
  const auto port = g.add_output(stage);
  g.stage_at(stage).dead_output = port;
  g.connect(stage, port, letters->stage(), g.add_input(letters->stage()));
}

}  // namespace

std::uint32_t add_source(flow_graph& g, stage_info info,
                         const std::optional<flow<dead_letter>>& letters) {
  info.is_source = info.is_timed = true;
  info.inputs = 0;
  if (info.name.empty()) info.name = info.kind;
  info.rate = unknown_rate;
  if (info.on_error.what == error_policy::kind::restart)
    g.note_mistake(error(error_code::usage,
                         info.name + ": a source that begins anew would make its items again; "
                                     "use skip()")
                       .at(info.where));
  const auto id = g.add_stage(std::move(info));
  add_dead_letters(g, id, letters);
  return id;
}

void is_alone(flow_graph& g, std::uint32_t stage, const stage_options& o) {
  const auto& s = g.stages()[stage];
  if (o.replicas != 1)
    g.note_mistake(
        error(error_code::usage, s.name + ": such a stage has no replicas; leave .replicas out")
            .at(s.where));
  if (!o.on.empty())
    g.note_mistake(
        error(error_code::usage, s.name + ": a " + s.kind + " runs in the program; leave .on out")
            .at(s.where));
}

std::uint32_t add_shape(flow_graph& g, std::vector<std::pair<std::uint32_t, std::uint32_t>> from,
                        stage_info info) {
  info.inputs = static_cast<std::uint32_t>(from.size());
  info.is_named = !info.name.empty();
  const auto id = g.add_stage(std::move(info));
  for (std::uint32_t i = 0; i < from.size(); ++i) g.connect(from[i].first, from[i].second, id, i);
  return id;
}

std::uint32_t add_merge(flow_graph& g, std::vector<std::pair<std::uint32_t, std::uint32_t>> from,
                        const source_location& where) {
  stage_info info;
  info.kind = "merge";
  info.where = where;
  info.takes_any = true;
  info.rate = unknown_rate;
  const auto inputs = static_cast<std::uint32_t>(from.size());
  info.make = [=] { return make_merge(inputs, no_port, no_port, 0); };
  auto feedback = no_port;
  for (std::uint32_t f = 0; f < g.feedbacks().size(); ++f)
    for (std::uint32_t i = 0; i < inputs; ++i) {
      if (g.feedbacks()[f].stage != from[i].first) continue;
      const auto credit = g.feedbacks()[f].credit;
      info.make = [=] { return make_merge(inputs, i, f, credit); };
      info.takes_any = false;
      feedback = f;
    }
  const auto id = add_shape(g, std::move(from), std::move(info));
  if (feedback != no_port) g.feedback_at(feedback).entrance = id;
  return id;
}

std::uint32_t add_function(flow_graph& g, std::uint32_t from, std::uint32_t port, new_stage s,
                           const stage_options& o, const source_location& where,
                           std::function<std::uint64_t(any_value&)> hash) {
  auto info = common(s, o, where);
  check_place(g, info);
  if (!s.is_copyable && (o.replicas > 1 || o.on_error.what == error_policy::kind::restart))
    g.note_mistake(error(error_code::usage,
                         info.name + ": its function cannot be copied, so there are neither "
                                     "replicas of it nor restarts")
                       .at(where));
  if (o.replicas == 0)
    g.note_mistake(error(error_code::usage, info.name + ": .replicas is 0").at(where));
  // What goes to nodes and may be made again has a deal and a gather in the program, and a spare
  // replica there (kept_replicas.hpp).
  const bool is_kept = s.travels != nullptr && s.travels->keeps_nothing && !hash && s.is_copyable;
  if (o.replicas <= 1 && !is_kept) {
    const auto id = g.add_stage(std::move(info));
    g.connect(from, port, id, 0);
    add_dead_letters(g, id, o.dead_letters);
    return id;
  }
  if (s.outputs == 0)
    // Replicas of an end: there is no order to keep.
    info.outputs = 1;
  const auto lanes = o.replicas + (is_kept ? 1 : 0);
  const auto ledger = std::make_shared<replica_ledger>(lanes);
  stage_info deal;
  deal.kind = "deal";
  deal.name = info.name + "/deal";
  deal.where = where;
  deal.is_hidden = true;
  deal.outputs = lanes;
  deal.looks_for_room = true;
  deal.is_timed = is_kept;
  if (is_kept) deal.ledger = ledger;
  deal.make = [hash, is_kept, lanes, ledger]() -> std::unique_ptr<stage> {
    if (is_kept) return std::make_unique<keeping_deal>(lanes, ledger);
    return make_deal(hash);
  };
  const auto dealer = g.add_stage(std::move(deal));
  g.connect(from, port, dealer, 0);
  stage_info gather;
  gather.kind = "gather";
  gather.name = info.name + "/gather";
  gather.where = where;
  gather.is_hidden = true;
  gather.inputs = lanes;
  gather.outputs = s.outputs;
  gather.takes_any = o.order == any;
  if (is_kept) gather.ledger = ledger;
  if (o.order == any) gather.rate = unknown_rate;
  gather.make = [is_kept, lanes, ledger, keeps = o.order == kept]() -> std::unique_ptr<stage> {
    if (is_kept) return std::make_unique<keeping_gather>(lanes, keeps, ledger);
    return make_gather(lanes, keeps);
  };
  std::vector<std::uint32_t> workers;
  const auto name = info.name;
  for (std::uint32_t i = 0; i < lanes; ++i) {
    auto one = info;
    if (o.replicas > 1) one.name = name + "/" + std::to_string(i);
    one.is_replica = true;
    one.is_kept = is_kept;
    if (i == o.replicas) {
      one.name = name + "/spare";
      one.is_kept = false;
      one.is_hidden = true;
      one.on.clear();
      one.travels = nullptr;
    }
    one.replica = i;
    one.replicas = o.replicas;
    workers.push_back(g.add_stage(std::move(one)));
    g.connect(dealer, i, workers.back(), 0, replica_items_max);
    add_dead_letters(g, workers.back(), o.dead_letters);
  }
  const auto gatherer = g.add_stage(std::move(gather));
  for (std::uint32_t i = 0; i < lanes; ++i)
    g.connect(workers[i], 0, gatherer, i, replica_items_max * 4);
  return gatherer;
}

}  // namespace troupe
