#include "troupe/runtime/flow/flow_placement.hpp"

#include <algorithm>
#include <numeric>

namespace troupe {
namespace {

bool sleeps_here(const flow_stage_info& s) { return s.may_block && !s.is_elsewhere; }

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
  return static_cast<std::uint32_t>(std::ranges::count_if(g.stages(), sleeps_here));
}

std::vector<std::uint32_t> place_together(const flow_graph& g, std::uint32_t threads) {
  std::vector<std::uint32_t> places;
  auto next = threads;
  for (const auto& s : g.stages()) places.push_back(sleeps_here(s) ? next++ : 0);
  return places;
}

flow_groups place_apart(const flow_graph& g, std::uint32_t threads) {
  flow_groups all;
  std::vector<std::uint32_t> of_loop(g.feedbacks().size(), no_port);
  auto next_asleep = threads;
  std::uint32_t next = 0;
  for (const auto& s : g.stages()) {
    auto group = static_cast<std::uint32_t>(all.thread_of.size());
    if (s.is_elsewhere) {
      all.group_of.push_back(0);
      continue;
    }
    if (s.loop != no_port && of_loop[s.loop] != no_port) {
      group = of_loop[s.loop];
    } else {
      all.thread_of.push_back(s.may_block ? next_asleep++ : next++ % threads);
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
    if (s.is_replica) {
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
