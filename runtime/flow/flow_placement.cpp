#include "troupe/runtime/flow/flow_placement.hpp"

#include <algorithm>
#include <numeric>

namespace troupe {
namespace {

bool sleeps_here(const flow_stage_info& s) { return s.may_block && !s.is_elsewhere; }

// Stages that sleep, each with the number of its thread among theirs. Who stands by has that of the
// instance that it takes over from.
template <class Each>
std::uint32_t each_sleeping(const flow_graph& g, const Each& each) {
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < g.stages().size(); ++i) {
    const auto& s = g.stages()[i];
    if (!sleeps_here(s)) continue;
    const bool shares = s.is_recovered && s.stands_by > 0 && sleeps_here(g.stages()[i - 1]);
    each(i, shares ? next - 1 : next++);
  }
  return next;
}

// What cannot be parted, in the order of its first stage.
struct unit {
  std::vector<std::uint32_t> stages;
  double load = 0;
};

// Contiguous pieces of `units`, as few as `most` allows, none above `limit` unless one unit is;
// empty: it takes more.
std::vector<std::uint32_t> pieces(const std::vector<unit>& units, std::uint32_t most,
                                  double limit) {
  std::vector<std::uint32_t> piece_of;
  std::uint32_t piece = 0;
  double load = 0;
  for (const auto& u : units) {
    if (!piece_of.empty() && load + u.load > limit) ++piece, load = 0;
    if (piece >= most) return {};
    load += u.load;
    piece_of.push_back(piece);
  }
  return piece_of;
}

// The smallest limit that `most` pieces keep.
std::vector<std::uint32_t> best_pieces(const std::vector<unit>& units, std::uint32_t most) {
  double low = 0, high = 0;
  for (const auto& u : units) low = std::max(low, u.load), high += u.load;
  auto best = pieces(units, most, high);
  for (int i = 0; i < 30; ++i) {
    const auto limit = (low + high) / 2;
    if (auto p = pieces(units, most, limit); !p.empty())
      best = std::move(p), high = limit;
    else
      low = limit;
  }
  return best;
}

}  // namespace

std::uint32_t sleeping_stages(const flow_graph& g) {
  return each_sleeping(g, [](auto, auto) {});
}

std::vector<std::uint32_t> place_together(const flow_graph& g, std::uint32_t threads) {
  std::vector<std::uint32_t> places(g.stages().size(), 0);
  each_sleeping(g, [&](std::uint32_t stage, std::uint32_t n) { places[stage] = threads + n; });
  return places;
}

flow_groups place_apart(const flow_graph& g, std::uint32_t threads) {
  flow_groups all;
  std::vector<std::uint32_t> of_loop(g.feedbacks().size(), no_port);
  const auto asleep = place_together(g, threads);
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < g.stages().size(); ++i) {
    const auto& s = g.stages()[i];
    auto group = static_cast<std::uint32_t>(all.thread_of.size());
    if (s.is_elsewhere) {
      all.group_of.push_back(0);
      continue;
    }
    if (s.loop != no_port && of_loop[s.loop] != no_port) {
      group = of_loop[s.loop];
    } else {
      all.thread_of.push_back(s.may_block ? asleep[i] : next++ % threads);
      if (s.loop != no_port) of_loop[s.loop] = group;
    }
    all.group_of.push_back(group);
  }
  return all;
}

double largest_load(const std::vector<std::uint32_t>& places, std::uint32_t threads,
                    const std::vector<double>& loads) {
  std::vector<double> of(threads);
  for (std::size_t i = 0; i < places.size(); ++i)
    if (places[i] < threads) of[places[i]] += loads[i];
  return *std::ranges::max_element(of);
}

std::vector<std::uint32_t> place_by_load(const flow_graph& g, std::uint32_t threads,
                                         const std::vector<double>& loads) {
  const auto together = place_together(g, threads);
  if (threads < 2) return together;
  std::vector<unit> chain, free;
  std::vector<std::uint32_t> loop_unit(g.feedbacks().size(), no_port);
  for (std::uint32_t i = 0; i < g.stages().size(); ++i) {
    const auto& s = g.stages()[i];
    if (s.may_block || s.is_elsewhere) continue;
    if (s.is_replica || s.replicas > 1) {
      free.push_back({{i}, loads[i]});
    } else if (s.loop != no_port && loop_unit[s.loop] != no_port) {
      auto& u = chain[loop_unit[s.loop]];
      u.stages.push_back(i);
      u.load += loads[i];
    } else {
      if (s.loop != no_port) loop_unit[s.loop] = static_cast<std::uint32_t>(chain.size());
      chain.push_back({{i}, loads[i]});
    }
  }
  std::ranges::stable_sort(free, std::greater<>(), &unit::load);
  auto best = together;
  auto best_load = largest_load(together, threads, loads);
  for (std::uint32_t n = 1; n <= threads; ++n) {
    const auto piece_of = best_pieces(chain, n);
    auto places = together;
    std::vector<double> load(threads);
    for (std::size_t u = 0; u < chain.size(); ++u) {
      for (const auto i : chain[u].stages) places[i] = piece_of[u];
      load[piece_of[u]] += chain[u].load;
    }
    for (const auto& u : free) {
      const auto least = static_cast<std::uint32_t>(std::ranges::min_element(load) - load.begin());
      places[u.stages[0]] = least;
      load[least] += u.load;
    }
    const auto largest = *std::ranges::max_element(load);
    // One more piece has to be worth its crossing.
    if (largest < best_load * 0.95) best = std::move(places), best_load = largest;
  }
  return best;
}

}  // namespace troupe
