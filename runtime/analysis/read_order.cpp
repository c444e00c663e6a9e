#include "troupe/runtime/analysis/read_order.hpp"

#include "troupe/runtime/plan/loop_rules.hpp"

#include <algorithm>

namespace troupe {

namespace {

struct consumer {
  std::uint32_t actor = 0, input = 0;
};

class reads {
 public:
  explicit reads(std::span<const actor_view> actors) : actors_(actors) {
    const auto is_sync = [](const actor_view& a) {
      return a.planned->kind == actor_kind::shard && a.planned->shard.update == update_kind::sync;
    };
    if (std::none_of(actors.begin(), actors.end(), is_sync)) return;
    find_consumers();
    for (std::uint32_t s = 0; s < actors.size(); ++s)
      if (is_sync(actors[s])) add(s);
    for (std::size_t first = 0; first < pairs_.size(); first += 64)
      look(first, std::min(pairs_.size(), first + 64));
    for (auto& r : all_)
      if (r.order != read_order::unknown)
        r.order = r.readers.empty() ? read_order::ordered : read_order::late;
  }
  std::vector<version_reads> take() { return std::move(all_); }

 private:
  // That `reader` ran before gradient `of`.
  struct pair {
    std::uint32_t reader = 0;
    std::size_t of = 0;
  };

  void find_consumers() {
    begin_.assign(actors_.size() + 1, 0);
    for (const auto& a : actors_)
      for (const auto& f : a.from) ++begin_[f.actor + 1];
    for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    consumers_.resize(begin_.back());
    auto next = begin_;
    for (std::uint32_t c = 0; c < actors_.size(); ++c)
      for (std::uint32_t i = 0; i < actors_[c].from.size(); ++i)
        consumers_[next[actors_[c].from[i].actor]++] = {c, i};
  }
  std::span<const consumer> consumers_of(std::uint32_t actor) const {
    return std::span(consumers_).subspan(begin_[actor], begin_[actor + 1] - begin_[actor]);
  }

  void add(std::uint32_t s) {
    const auto& shard = actors_[s].planned->shard;
    for (std::uint32_t input = 0; input < gradient_ports(shard) && input < actors_[s].from.size();
         ++input) {
      all_.push_back({s, input, actors_[s].from[input]});
      if (shard.follows || shard.forwards) continue;  // a replica takes versions and gradients, too
      std::vector<std::uint32_t> readers;
      if (!find_readers(s, input, readers)) continue;
      all_.back().order = read_order::ordered;
      for (const auto r : readers) pairs_.push_back({r, all_.size() - 1});
    }
  }

  // The ops that take worker `input`'s versions, also through those that hand them on. False: some
  // cannot be ordered.
  bool find_readers(std::uint32_t s, std::uint32_t input,
                    std::vector<std::uint32_t>& readers) const {
    const auto& shard = *actors_[s].planned;
    const auto& maker = *actors_[all_.back().gradient.actor].planned;
    if (maker.kind != actor_kind::op || maker.task != shard.task) return false;
    std::vector<port_ref> open;
    for (std::uint32_t port = 0; port < shard.shard.readers.size(); ++port)
      if (shard.shard.readers[port].worker == static_cast<std::int32_t>(input))
        open.push_back({s, port});
    if (open.empty()) return false;
    while (!open.empty()) {
      const auto at = open.back();
      open.pop_back();
      for (const auto& c : consumers_of(at.actor)) {
        if (actors_[c.actor].from[c.input].port != at.port) continue;
        const auto& a = *actors_[c.actor].planned;
        if (a.kind != actor_kind::op || is_control(a.ops.front().type) || a.task != maker.task ||
            a.stream != maker.stream || a.loop_level != 0)
          return false;
        if (std::find(readers.begin(), readers.end(), c.actor) != readers.end()) continue;
        readers.push_back(c.actor);
        if (actors_[c.actor].forwards_input && c.input == 0) open.push_back({c.actor, 0});
      }
    }
    return !readers.empty();
  }

  // Behind those that hand it on.
  std::uint32_t maker_of(port_ref at) const {
    while (actors_[at.actor].forwards_input && !actors_[at.actor].from.empty() &&
           actors_[at.actor].from[0].actor < at.actor)
      at = actors_[at.actor].from[0];
    return at.actor;
  }

  // 64 pairs at a time: for each actor, which of their readers ran before it.
  void look(std::size_t first, std::size_t last) {
    std::vector<std::vector<std::size_t>> of_reader;
    std::vector<std::uint32_t> slot(actors_.size(), 0);
    for (auto k = first; k < last; ++k) {
      auto& at = slot[pairs_[k].reader];
      if (at == 0) {
        of_reader.emplace_back();
        at = static_cast<std::uint32_t>(of_reader.size());
      }
      of_reader[at - 1].push_back(k - first);
    }
    std::vector<std::uint64_t> before(actors_.size(), 0), done(actors_.size(), 0);
    for (std::uint32_t i = 0; i < actors_.size(); ++i) {
      for (const auto& f : actors_[i].from)
        if (f.actor < i) before[i] |= done[f.actor];
      done[i] = before[i];
      if (slot[i] != 0)
        for (const auto k : of_reader[slot[i] - 1]) done[i] |= std::uint64_t{1} << k;
    }
    for (auto k = first; k < last; ++k) {
      auto& r = all_[pairs_[k].of];
      if ((done[maker_of(r.gradient)] >> (k - first) & 1U) != 0) r.is_made_of_it = true;
      if ((before[r.gradient.actor] >> (k - first) & 1U) != 0) continue;
      r.readers.push_back(pairs_[k].reader);
      if (actors_[pairs_[k].reader].may_be_dead || actors_[r.gradient.actor].may_be_dead)
        r.order = read_order::unknown;
    }
  }

  std::span<const actor_view> actors_;
  std::vector<std::size_t> begin_;
  std::vector<consumer> consumers_;
  std::vector<pair> pairs_;
  std::vector<version_reads> all_;
};

}  // namespace

std::vector<version_reads> reads_of_versions(std::span<const actor_view> actors) {
  return reads(actors).take();
}

std::vector<version_reads> reads_of_versions(const plan& p) {
  if (std::none_of(p.actors.begin(), p.actors.end(),
                   [](const auto& a) { return a.kind == actor_kind::shard; }))
    return {};
  std::vector<port_ref> from;
  from.reserve(p.edges.size());
  std::vector<actor_view> actors;
  actors.reserve(p.actors.size());
  for (const auto& a : p.actors) {
    const auto begin = from.size();
    for (const auto e : a.inputs) {
      // It is no whole plan.
      if (e >= p.edges.size() || p.edges[e].from.actor >= p.actors.size()) return {};
      from.push_back(p.edges[e].from);
    }
    actors.push_back(
        {&a, std::span(from.data() + begin, a.inputs.size()), a.forwards_input, false});
  }
  return reads_of_versions(actors);
}

}  // namespace troupe
