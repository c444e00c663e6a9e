#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace troupe::passes {
namespace {

constexpr std::size_t types_in_name_max = 4;

// Merges producers into their consumers, in the order of the actors, so that a consumer meets its
// producers as groups that are complete already. A group keeps the place of its last op, and so the
// order of actors (PS-2).
class fuser {
 public:
  fuser(draft d, const op_table& table, pass_report* report)
      : d_(std::move(d)),
        table_(table),
        report_(report),
        uses_(d_.actors.size()),
        is_gone_(d_.actors.size()),
        ports_(d_.actors.size()) {
    for (const auto& a : d_.actors)
      for (const auto& p : a.from) ++uses_[p.actor];
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i)
      last_users_.push_back(is_users(i) ? i + 1 : users_before(d_.actors[i]));
  }

  draft run() {
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i)
      if (is_op(i) && is_elementwise(d_.actors[i].planned.ops[0])) absorb_producers(i);
    name_groups();
    return renumbered();
  }

 private:
  bool is_op(std::uint32_t i) const { return d_.actors[i].planned.kind == actor_kind::op; }
  bool is_elementwise(const planned_op& op) const {
    const auto* row = table_.find(op.type);
    return row != nullptr && row->is_elementwise;
  }
  // Everything in the group is element-wise, so that it may stand behind another first op.
  bool is_headless(std::uint32_t i) const { return is_elementwise(d_.actors[i].planned.ops[0]); }

  // It begins with an op of a user's that may take long.
  bool is_users(std::uint32_t i) const {
    if (!is_op(i)) return false;
    const auto* row = table_.find(d_.actors[i].planned.ops[0].type);
    return row != nullptr && row->library != nullptr && !row->is_elementwise;
  }

  // Of what an actor takes: the last op of a user's that may take long, counted from 1; 0: none.
  std::uint32_t users_before(const draft_actor& a) const {
    std::uint32_t last = 0;
    for (const auto& p : a.from)
      if (p.actor < last_users_.size()) last = std::max(last, last_users_[p.actor]);
    return last;
  }

  bool can_absorb(std::uint32_t consumer, std::uint32_t producer) const {
    if (!is_op(producer) || uses_[producer] != 1) return false;
    const auto &c = d_.actors[consumer], &p = d_.actors[producer];
    if (p.planned.output_specs.size() != 1 ||
        p.planned.output_specs[0].shape != c.planned.output_specs[0].shape)
      return false;
    // A first op that is not element-wise writes into the result of the group.
    if (p.planned.output_specs[0].type != c.planned.output_specs[0].type && !is_headless(producer))
      return false;
    if (p.device != c.device || p.owner != c.owner || p.index != c.index || p.region != c.region)
      return false;
    const auto* row = table_.find(p.planned.ops[0].type);
    // It would wait for a long op that stands behind another operand.
    if (is_users(producer) && std::ranges::any_of(c.from, [&](const port_ref& other) {
          return other.actor != producer &&
                 last_users_[other.actor] > users_before(d_.actors[producer]);
        }))
      return false;
    return row != nullptr && !row->is_source && !row->is_forwarding && !row->is_control;
  }

  void absorb_producers(std::uint32_t i) {
    // At most one group may bring a first op that is not element-wise. The group with it, or else
    // the longest one, stays where it is, and the others move: every op moves O(log n) times.
    std::vector<std::uint32_t> groups;
    std::optional<std::uint32_t> base;
    for (const auto& p : d_.actors[i].from) {
      if (!can_absorb(i, p.actor)) {
        if (report_ != nullptr && d_.actors[i].index == 0) tell_apart(i, p.actor);
        continue;
      }
      if (!is_headless(p.actor)) {
        if (base && !is_headless(*base)) continue;
        base = p.actor;
      } else if (!base || (is_headless(*base) && size_of_group(p.actor) > size_of_group(*base))) {
        base = p.actor;
      }
      groups.push_back(p.actor);
    }
    if (!base) return;
    merge(i, *base, groups);
  }

  std::size_t size_of_group(std::uint32_t i) const { return d_.actors[i].planned.ops.size(); }

  // Ops of `base`, of the other groups, then of the consumer itself become the ops of the consumer.
  void merge(std::uint32_t consumer, std::uint32_t base, const std::vector<std::uint32_t>& groups) {
    auto& c = d_.actors[consumer];
    const auto sticky = sticky_of(consumer, groups);
    auto own = std::move(c.planned.ops[0]);
    auto own_from = std::move(c.from);
    auto& b = d_.actors[base];
    c.planned.ops = std::move(b.planned.ops);
    c.planned.name = std::move(b.planned.name);
    c.from = std::move(b.from);
    ports_[consumer] = ports_[base].empty() ? index_ports(c.from) : std::move(ports_[base]);
    is_gone_[base] = true;
    std::unordered_map<std::uint32_t, std::int32_t> last_op{{base, last_of(c)}};
    for (const auto g : groups) {
      if (g == base) continue;
      append(consumer, d_.actors[g]);
      is_gone_[g] = true;
      last_op[g] = last_of(c);
    }
    for (auto& operand : own.operands) {
      const auto from = own_from[static_cast<std::size_t>(operand)];
      const auto inside = last_op.find(from.actor);
      operand = inside != last_op.end() ? -1 - inside->second : port_for(consumer, from);
    }
    c.planned.ops.push_back(std::move(own));
    c.planned.sticky.clear();
    if (sticky.empty()) return;
    for (const auto& from : c.from) c.planned.sticky.push_back(sticky.at(key(from)));
  }

  // In loops: of all that the new group takes, whether it stays for a run of the loop. Empty:
  // nothing does.
  std::unordered_map<std::uint64_t, std::uint16_t> sticky_of(
      std::uint32_t consumer, const std::vector<std::uint32_t>& groups) const {
    std::unordered_map<std::uint64_t, std::uint16_t> levels;
    bool is_any = false;
    const auto add = [&](std::uint32_t i) {
      const auto& a = d_.actors[i];
      for (std::size_t k = 0; k < a.from.size(); ++k)
        levels[key(a.from[k])] = a.planned.sticky.empty() ? std::uint16_t{0} : a.planned.sticky[k];
      is_any = is_any || !a.planned.sticky.empty();
    };
    if (d_.actors[consumer].planned.loop_level == 0) return {};
    add(consumer);
    for (const auto g : groups) add(g);
    return is_any ? levels : std::unordered_map<std::uint64_t, std::uint16_t>{};
  }

  static std::int32_t last_of(const draft_actor& a) {
    return static_cast<std::int32_t>(a.planned.ops.size()) - 1;
  }

  void append(std::uint32_t consumer, draft_actor& group) {
    auto& ops = d_.actors[consumer].planned.ops;
    const auto offset = static_cast<std::int32_t>(ops.size());
    for (auto& op : group.planned.ops) {
      for (auto& operand : op.operands)
        operand = operand < 0 ? operand - offset
                              : port_for(consumer, group.from[static_cast<std::size_t>(operand)]);
      ops.push_back(std::move(op));
    }
  }

  // --- input ports of a group: one per producer's port ---

  using port_index = std::unordered_map<std::uint64_t, std::int32_t>;
  static std::uint64_t key(port_ref p) noexcept { return std::uint64_t{p.actor} << 32U | p.port; }
  static port_index index_ports(const std::vector<port_ref>& from) {
    port_index index;
    for (std::size_t i = 0; i < from.size(); ++i)
      index.emplace(key(from[i]), static_cast<std::int32_t>(i));
    return index;
  }
  std::int32_t port_for(std::uint32_t consumer, port_ref from) {
    auto& ports = d_.actors[consumer].from;
    const auto [at, is_new] =
        ports_[consumer].try_emplace(key(from), static_cast<std::int32_t>(ports.size()));
    if (is_new) ports.push_back(from);
    return at->second;
  }

  // --- the end ---

  // Of ops that people may have thought to be one.
  void tell_apart(std::uint32_t consumer, std::uint32_t producer) {
    const auto &c = d_.actors[consumer], &p = d_.actors[producer];
    if (!is_op(producer) || !is_elementwise(p.planned.ops.back())) return;
    report_->add(c.planned.name, c.planned.source, [&] {
      const auto why =
          uses_[producer] != 1 ? fmt::format("{} read it", uses_[producer])
          : p.planned.output_specs[0].shape != c.planned.output_specs[0].shape
              ? fmt::format("it makes {}, of another shape", to_string(p.planned.output_specs[0]))
          : p.device != c.device || p.owner != c.owner || p.index != c.index
              ? std::string("it is on another device, worker or shard")
          : p.region != c.region
              ? std::string("it is in another branch or loop")
              : fmt::format("its first op makes {}", to_string(p.planned.output_specs[0]));
      return fmt::format("is not fused with {}, whose output it takes: {}", p.planned.name, why);
    });
  }

  // Every worker has the same.
  void tell(const planned_actor& a) {
    report_->add(a.name, a.source, [&] {
      std::string names;
      for (std::size_t k = 1; k < a.ops.size() && k <= types_in_name_max; ++k)
        names += (k == 1 ? "" : ", ") + a.ops[k].name;
      if (a.ops.size() > types_in_name_max + 1)
        names += fmt::format(" and {} more", a.ops.size() - types_in_name_max - 1);
      return fmt::format(
          "is fused with {} into one actor: they work element by element, and no other op reads "
          "the values in between",
          names);
    });
  }

  // "dense_1/matmul+add+relu": '+' is not part of any op's own name, so that names stay unique.
  void name_groups() {
    for (std::uint32_t i = 0; i < d_.actors.size(); ++i) {
      auto& a = d_.actors[i].planned;
      if (is_gone_[i]) continue;
      if (report_ != nullptr && a.ops.size() > 1 && d_.actors[i].index == 0) tell(a);
      for (std::size_t k = 1; k < a.ops.size() && k < types_in_name_max; ++k)
        a.name += "+" + a.ops[k].type;
      if (a.ops.size() > types_in_name_max)
        a.name += "+" + std::to_string(a.ops.size() - types_in_name_max) + "_more";
    }
  }

  draft renumbered() {
    std::vector<std::uint32_t> number(d_.actors.size());
    std::uint32_t kept = 0;
    for (std::size_t i = 0; i < number.size(); ++i)
      if (!is_gone_[i]) number[i] = kept++;
    draft out;
    out.actors.reserve(kept);
    for (std::size_t i = 0; i < number.size(); ++i) {
      if (is_gone_[i]) continue;
      for (auto& p : d_.actors[i].from) p.actor = number[p.actor];
      out.actors.push_back(std::move(d_.actors[i]));
    }
    return out;
  }

  draft d_;
  const op_table& table_;
  pass_report* report_;
  std::vector<std::uint32_t> uses_;  // input ports that take something from the actor
  std::vector<bool> is_gone_;
  std::vector<std::uint32_t> last_users_;  // as users_before(), the actor itself included
  std::vector<port_index> ports_;          // of groups: producer's port -> input port
};

}  // namespace

draft fuse(draft d, const op_table& ops, pass_report* report) {
  return fuser(std::move(d), ops, report).run();
}

}  // namespace troupe::passes
