#pragma once
// What trains: samples of a data set in an order of their own, epoch after epoch.
//
//   auto paths = samples(t, list_of_paths, {.seed = 5, .epochs = 0, .from = step * 24});
//   auto pixels = cached(paths, decode{}, {.bytes = 4 << 30}, {.replicas = 4});
//   auto turned = map(pixels, [](sample<image> s) { return flipped(s.value, s.random % 2); });
//
// SAM-1  What samples() gives is a function of (options, number of the sample): a source that
//        begins at a number gives what one that began at 0 gives from there on, and is there at
//        once. So a training that goes back, or begins with a checkpoint, sees the samples that it
//        would have seen.
// SAM-2  An epoch has every sample once.
// SAM-3  Up to 2^19 samples the order of an epoch is that of idx_batch with the same seed
//        (devices/files/idx_sampler.hpp); beyond that it takes no memory (sample_order).
// SAM-4  What samples() and cached() give is its taker's own: a stage that writes into a tensor, or
//        changes a list, changes nothing of the data set and nothing that is kept; but for what
//        lies behind a shared pointer, or in a struct that lists no fields.
//
// A sample that is skipped (.on_error) moves all behind it: a training that has to see the same
// again stops at what it cannot read.
//
// Threading and ownership: as all of flow.hpp.

#include "troupe/runtime/flow/flow.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

// The order of one epoch: a permutation of 0 .. count - 1 that only (seed, epoch, count) decide.
// Above 2^19, where a list would take more than some milliseconds, a Feistel network of four rounds
// over the next power of four, walked until it is within (Black and Rogaway: Ciphers with Arbitrary
// Finite Domains, 2002).
class sample_order {
 public:
  static constexpr std::uint64_t listed_max = std::uint64_t{1} << 19;

  sample_order() = default;
  sample_order(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count);
  std::uint64_t at(std::uint64_t position) const noexcept;  // < count

 private:
  std::vector<std::uint32_t> list_;
  std::uint64_t count_ = 0, key_ = 0;
  std::uint32_t half_bits_ = 0;
};

// A number for whoever needs chance: the same for equal (seed, number).
std::uint64_t random_of_sample(std::uint64_t seed, std::uint64_t number) noexcept;

// Tensors share their memory with their copies; this one has memory of its own, so that whoever
// gets it may write there (SAM-4).
tensor own_copy(const tensor& t);
template <class T>
void unshare(T& v) {
  if constexpr (std::is_same_v<T, tensor>) {
    v = own_copy(v);
  } else if constexpr (std::is_const_v<T> || std::is_trivially_copyable_v<T>) {
  } else if constexpr (has_fields<T>) {
    T::fields.each(v, [](std::string_view, auto& member) { unshare(member); });
  } else if constexpr (is_vector<T>::value || is_deque<T>::value || is_array<T>::value) {
    if constexpr (!std::is_trivially_copyable_v<typename T::value_type>)
      for (auto& element : v) unshare(element);
  } else if constexpr (is_optional<T>::value) {
    if (v) unshare(*v);
  } else if constexpr (is_tuple<T>::value) {
    std::apply([](auto&... element) { (unshare(element), ...); }, v);
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (auto& [key, element] : v) unshare(element);
  }
}
template <class T>
T own_copy(const T& v) {
  auto out = v;
  unshare(out);
  return out;
}

// One sample. A stage of map() that takes a T takes it, too, and gets the value.
template <class T>
struct sample {
  T value{};
  std::uint64_t index = 0;   // in the data set
  std::uint64_t number = 0;  // 0, 1, ... over all epochs
  std::uint64_t random = 0;  // random_of_sample(): for what augments it
  operator T() && { return std::move(value); }
  static constexpr auto fields =
      troupe::fields<&sample::value, &sample::index, &sample::number, &sample::random>(
          "value", "index", "number", "random");
};

struct sample_options {
  std::uint64_t seed = 1;
  bool is_shuffled = true;   // each epoch anew; false: as they stand in the data set
  std::uint64_t epochs = 1;  // 0: without an end
  std::uint64_t from = 0;    // the number of the first one
  std::string name{};
};

// The elements of `data` (size() and operator[]), which is moved into the topology, epoch after
// epoch.
template <class Data>
auto samples(flow_graph& t, Data data, const sample_options& o = {},
             source_location where = source_location::current()) {
  using T = std::remove_cvref_t<decltype(data[0])>;
  const auto count = static_cast<std::uint64_t>(data.size());
  if (count == 0) t.note_mistake(error(error_code::usage, "samples: there are none").at(where));
  struct source_of {
    std::shared_ptr<const Data> all;
    sample_options o;
    std::uint64_t state = 0;  // the number of the next one
    std::uint64_t epoch = 0;
    sample_order order{};
    bool has_order = false;
    std::optional<sample<T>> operator()() {
      const auto count = static_cast<std::uint64_t>(all->size());
      if (count == 0) return std::nullopt;
      const auto now = state / count;
      if (o.epochs != 0 && now >= o.epochs) return std::nullopt;
      if (o.is_shuffled && (!has_order || now != epoch)) {
        order = sample_order(o.seed, now, count);
        has_order = true;
      }
      epoch = now;
      const auto index = o.is_shuffled ? order.at(state % count) : state % count;
      return sample<T>{own_copy((*all)[static_cast<std::size_t>(index)]), index, state,
                       random_of_sample(o.seed, state++)};
    }
  };
  stage_info info;
  info.name = o.name;
  info.is_named = !o.name.empty();
  info.kind = "samples";
  info.where = where;
  info.has_position = true;
  info.state_layout = "u64";
  info.make = stage_maker<source_stage<source_of>>(
      source_of{std::make_shared<const Data>(std::move(data)), o, o.from});
  return flow<sample<T>>(t, add_source(t, std::move(info)), 0);
}

// --- of flows that have no numbers ---------------------------------------------------------------

struct shuffle_options {
  std::uint64_t seed = 1;
  std::uint64_t hold = 1'024;  // items, of which one leaves by chance when another one comes
  std::string name{};
};
std::unique_ptr<stage> make_shuffle(std::uint64_t seed, std::uint64_t hold);
std::unique_ptr<stage> make_interleave(std::uint32_t inputs);

// The items in another order, which seed and order of the flow decide: of archives or streams,
// where samples() cannot be had. What `hold` items take is held.
template <class T>
flow<T> shuffle(const flow<T>& in, const shuffle_options& o = {},
                source_location where = source_location::current()) {
  stage_info info;
  info.name = o.name;
  info.kind = "shuffle";
  info.where = where;
  info.holds = true;
  info.holds_items = {held_codec<T>()};
  info.rate = unknown_rate;
  if (o.hold == 0)
    in.graph().note_mistake(error(error_code::usage, "shuffle: .hold is 0").at(where));
  info.make = [=] { return make_shuffle(o.seed, o.hold); };
  return {in.graph(), add_shape(in.graph(), {{in.stage(), in.port()}}, std::move(info)), 0};
}

// One item of each flow in turn, of those that have not ended: the order is that of the flows, and
// not of the clock, as merge()'s is.
template <class T>
flow<T> interleave(const std::vector<flow<T>>& flows,
                   source_location where = source_location::current()) {
  expects(!flows.empty(), "interleave: there is a flow");
  std::vector<std::pair<std::uint32_t, std::uint32_t>> from;
  for (const auto& f : flows) from.emplace_back(f.stage(), f.port());
  stage_info info;
  info.kind = "interleave";
  info.where = where;
  info.is_join = true;
  info.holds_items = {held_codec<T>()};
  info.rate = unknown_rate;
  const auto inputs = static_cast<std::uint32_t>(from.size());
  info.make = [inputs] { return make_interleave(inputs); };
  auto& g = flows.front().graph();
  return {g, add_shape(g, std::move(from), std::move(info)), 0};
}

// --- what is made once ---------------------------------------------------------------------------

struct cache_options {
  std::uint64_t bytes = std::uint64_t{1} << 30;  // of all replicas together
};

template <class T>
struct sample_parts {
  using value = T;
  static const T& key(const T& v) { return v; }
  template <class U>
  using with = U;
  template <class U>
  static U put(T&&, U made) {
    return made;
  }
};
template <class T>
struct sample_parts<sample<T>> {
  using value = T;
  static const T& key(const sample<T>& s) { return s.value; }
  template <class U>
  using with = sample<U>;
  template <class U>
  static sample<U> put(sample<T>&& s, U made) {
    return {std::move(made), s.index, s.number, s.random};
  }
};

// As map(in, f), and what f made of an item is kept for the items that are equal to it, while there
// is room: what is kept stays, so that of a data set as large as the room times three, a third need
// not be made again in each epoch. f is const, makes one item of each, and items have std::hash and
// ==. Of samples the value counts, and what comes out are samples. Items of one value go to one
// replica.
template <class T, class F>
auto cached(const flow<T>& in, F f, const cache_options& c = {}, const stage_options& o = {},
            source_location where = source_location::current()) {
  using parts = sample_parts<T>;
  using V = typename parts::value;
  constexpr bool fits = std::is_invocable_v<const F&, V>;
  static_assert(fits, "cached: the stage does not take the items of this flow, or is not const");
  if constexpr (!fits) {
    return in;
  } else {
    using contract = returned_by<const F, V>;
    static_assert(contract::is_one, "cached: the stage makes one item of each; use map");
    using U = typename contract::item;
    using W = typename parts::template with<U>;
    struct kept_by_value {
      F f;
      std::uint64_t bytes_max = 0;
      std::unordered_map<V, U> kept{};
      std::uint64_t bytes = 0;
      result<void> open() { return open_function(f); }
      result<W> operator()(T item) {
        if (const auto at = kept.find(parts::key(item)); at != kept.end())
          return parts::put(std::move(item), own_copy(at->second));
        auto key = V(parts::key(item));
        auto made = std::as_const(f)(V(key));
        if constexpr (contract::may_fail) {
          if (!made) return std::move(made.error());
          return keep(std::move(item), std::move(key), std::move(*made));
        } else {
          return keep(std::move(item), std::move(key), std::move(made));
        }
      }
      W keep(T&& item, V&& key, U made) {
        const auto takes = value_bytes(key) + value_bytes(made) + 4 * sizeof(void*);
        if (takes <= bytes_max - bytes) {
          bytes += takes;
          kept.emplace(std::move(key), own_copy(made));
        }
        return parts::put(std::move(item), std::move(made));
      }
    };
    auto& g = in.graph();
    if (!o.on.empty())
      g.note_mistake(
          error(error_code::usage, "cached: what it keeps is in the program; leave .on out")
              .at(where));
    const auto hash = [](any_value& v) -> std::uint64_t {
      const auto h = std::uint64_t{std::hash<V>{}(parts::key(std::as_const(v.get<T>())))};
      return (h ^ h >> 33) * 0xff51afd7ed558ccd >> 20;
    };
    auto keeps =
        kept_by_value{std::move(f), c.bytes / std::max<std::uint64_t>(1, o.replicas.most())};
    return flow<W>(
        g,
        add_function(
            g, in.stage(), in.port(),
            {"cached", &typeid(F), stage_maker<function_stage<kept_by_value, T>>(std::move(keeps)),
             1, rate_of_result<F>(true), false, std::is_copy_constructible_v<F>},
            o, where, !o.replicas.is_one() ? hash : std::function<std::uint64_t(any_value&)>()),
        0);
  }
}

}  // namespace troupe
