#include "troupe/runtime/flow/flow.hpp"

#include "troupe/runtime/flow/kept_replicas.hpp"
#include "troupe/runtime/flow/lender.hpp"
#include "troupe/runtime/flow/recovered_replicas.hpp"
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
  info.contract = s.contract;
  info.borrows = s.borrows;
  if (s.forgets != nullptr) info.forgets = s.forgets;
  info.state_layout = s.state_layout;
  info.holds_items = types_that_wait({s.takes});
  return info;
}

// What can be said of `.on` before a cluster is seen.
void check_place(flow_graph& g, const stage_info& s) {
  if (s.on.empty()) return;
  const auto refuse = [&](const std::string& why) {
    g.note_mistake(error(error_code::usage, s.name + ": " + why).at(s.where));
  };
  if (s.borrows != nullptr)
    return refuse("the resource " + s.borrows->name() + " is this program's; leave .on out");
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

void check_replicas(flow_graph& g, const stage_info& s, const replica_count& n, bool is_by_key) {
  const auto refuse = [&](const std::string& why) {
    g.note_mistake(error(error_code::usage, s.name + ": " + why).at(s.where));
  };
  if (n.may_change() && is_by_key)
    refuse("its items go to replicas by their keys, whose number stays: say how many");
  if (n.is_sound()) return;
  if (n.at_first() == 0) return refuse(".replicas is 0");
  if (n.at_first() > n.most()) return refuse(".replicas begins with more than its most");
  refuse(".replicas is more than " + std::to_string(replica_count::most_of_all));
}

// That are built.
std::uint32_t most_replicas(const flow_graph& g, const new_stage& s, const stage_options& o) {
  constexpr std::uint32_t asleep = 16, on_nodes = 8;
  if (!o.replicas.is_sound()) return 1;
  if (!o.replicas.is_automatic()) return o.replicas.most();
  if (!s.is_copyable) return 1;
  if (!o.on.empty()) return on_nodes;
  return o.blocks ? asleep : std::clamp(g.threads(), 1U, asleep);
}

void add_dead_letters(flow_graph& g, std::uint32_t stage,
                      const std::optional<flow<dead_letter>>& letters) {
  if (!letters) return;
  const auto port = g.add_output(stage);
  g.stage_at(stage).dead_output = port;
  g.connect(stage, port, letters->stage(), g.add_input(letters->stage()));
}

// What becomes of a replica when its process is lost.
enum class survival : std::uint8_t {
  none,      // the topology ends
  dealt,     // what it had is given to others (kept_replicas.hpp)
  recovered  // it is made again with its state (recovered_replicas.hpp)
};
survival survival_of(const new_stage& s, const stage_options& o, bool is_by_key) {
  if (s.travels == nullptr || !s.is_copyable || !o.replicas.is_sound()) return survival::none;
  if (s.travels->keeps_nothing && !is_by_key) return survival::dealt;
  return s.travels->keeps_state ? survival::recovered : survival::none;
}

// What stands before and behind replicas, without names and ports.
struct replica_ends {
  stage_info deal, gather;
};
replica_ends ends_of_replicas(survival kind, std::uint32_t replicas, bool keeps_order,
                              std::function<std::uint64_t(any_value&)> hash,
                              const std::shared_ptr<replica_control>& control) {
  replica_ends e;
  e.deal.control = control;
  e.deal.kind = "deal";
  e.deal.is_hidden = e.gather.is_hidden = true;
  e.deal.looks_for_room = true;
  e.deal.is_timed = kind != survival::none;
  e.gather.kind = "gather";
  e.gather.takes_any = !keeps_order;
  if (!keeps_order) e.gather.rate = unknown_rate;
  if (kind == survival::none) {
    e.deal.make = [hash = std::move(hash), control] { return make_deal(hash, control); };
    e.gather.make = [=] { return make_gather(replicas, keeps_order); };
    return e;
  }
  if (kind == survival::dealt) {
    const auto all = replicas + 1;
    const auto ledger = std::make_shared<replica_ledger>(all, 0);
    e.deal.make = [=] { return std::make_unique<keeping_deal>(all, ledger, control); };
    e.gather.make = [=] { return std::make_unique<keeping_gather>(all, keeps_order, ledger); };
    e.deal.ledger = e.gather.ledger = ledger;
    return e;
  }
  const auto ledger = std::make_shared<replica_ledger>(0, replicas);
  e.deal.make = [=, hash = std::move(hash)] {
    return std::make_unique<recovering_deal>(replicas, hash, ledger, control);
  };
  e.gather.make = [=] {
    return std::make_unique<recovering_gather>(replicas, keeps_order, ledger);
  };
  e.deal.ledger = e.gather.ledger = ledger;
  return e;
}

// All that stand between those: replicas, and who takes over for them.
std::vector<stage_info> instances_of(const stage_info& info, survival kind, std::uint32_t replicas,
                                     bool makes_at_end) {
  std::vector<stage_info> all;
  const auto add = [&](std::uint32_t replica, std::uint32_t stands_by, const char* suffix) {
    auto one = info;
    one.base = info.name;
    if (replicas > 1 && replica < replicas) one.name += "/" + std::to_string(replica);
    one.name += suffix;
    one.replica = replica;
    one.replicas = replicas;
    // Where nothing comes of an item, there are no tickets to keep in order.
    one.is_replica = kind != survival::none || !makes_at_end;
    one.stands_by = stands_by;
    one.is_hidden = stands_by > 0;
    one.is_recovered = kind == survival::recovered;
    const bool is_last = stands_by + 1 == lane_instances || replica == replicas;
    one.is_kept = kind != survival::none && !is_last;
    if (is_last) {  // in the program
      one.on.clear();
      one.travels = nullptr;
    }
    all.push_back(std::move(one));
  };
  for (std::uint32_t i = 0; i < replicas; ++i) {
    add(i, 0, "");
    if (kind != survival::recovered) continue;
    add(i, 1, "/stand-by");
    add(i, 2, "/spare");
  }
  if (kind == survival::dealt) add(replicas, 1, "/spare");
  return all;
}

}  // namespace

std::uint32_t add_source(flow_graph& g, stage_info info,
                         const std::optional<flow<dead_letter>>& letters) {
  info.is_source = info.is_timed = true;
  if (!info.has_position && info.forgets.empty())
    info.forgets =
        "it cannot be told where to go on: sources of files, from(), samples() and timer() can, "
        "and functions with a member `state`";
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
  if (!o.replicas.is_one())
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
  if (!s.is_copyable && (!o.replicas.is_one() || o.on_error.what == error_policy::kind::restart))
    g.note_mistake(error(error_code::usage,
                         info.name + ": its function cannot be copied, so there are neither "
                                     "replicas of it nor restarts")
                       .at(where));
  check_replicas(g, info, o.replicas, static_cast<bool>(hash));
  const auto kind = survival_of(s, o, static_cast<bool>(hash));
  const auto replicas = most_replicas(g, s, o);
  if (replicas <= 1 && kind == survival::none) {
    const auto id = g.add_stage(std::move(info));
    g.connect(from, port, id, 0);
    add_dead_letters(g, id, o.dead_letters);
    return id;
  }
  const auto keeps_order = o.order == kept;
  std::shared_ptr<replica_control> control;
  if (o.replicas.may_change())
    control = info.control = std::make_shared<replica_control>(o.replicas.at_first(), replicas,
                                                               o.replicas.is_automatic());
  if (o.replicas.is_automatic() && control != nullptr)
    control->reason.store(replica_reason::suffices);
  auto ends = ends_of_replicas(kind, replicas, keeps_order, std::move(hash), control);
  // Replicas of an end: there is no order to keep.
  if (s.outputs == 0) info.outputs = 1;
  const auto instances = instances_of(info, kind, replicas, s.makes_at_end);
  ends.deal.name = info.name + "/deal";
  ends.deal.outputs = static_cast<std::uint32_t>(instances.size());
  ends.gather.name = info.name + "/gather";
  ends.gather.inputs = ends.deal.outputs;
  ends.gather.outputs = s.outputs;
  ends.deal.where = ends.gather.where = where;
  ends.deal.holds_items = types_that_wait({s.takes});
  ends.gather.holds_items = types_that_wait({s.makes});
  const auto dealer = g.add_stage(std::move(ends.deal));
  g.connect(from, port, dealer, 0);
  std::vector<std::uint32_t> workers;
  for (const auto& one : instances) {
    workers.push_back(g.add_stage(one));
    g.connect(dealer, static_cast<std::uint32_t>(workers.size() - 1), workers.back(), 0,
              replica_items_max);
    add_dead_letters(g, workers.back(), o.dead_letters);
  }
  const auto gatherer = g.add_stage(std::move(ends.gather));
  for (std::uint32_t i = 0; i < workers.size(); ++i)
    g.connect(workers[i], 0, gatherer, i, replica_items_max * 4);
  return gatherer;
}

}  // namespace troupe
