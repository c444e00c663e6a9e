#pragma once
// A training that a pipeline feeds.
//
//   auto run = s->train(g, loss,
//                       {.workers = 2, .steps = 1'000, .on_failure = failure_policy::resume,
//                        .is_fed = true});
//   auto end = feed(**run, [&](topology& t, std::uint64_t step) {
//     auto paths = samples(t, list, {.seed = 5, .epochs = 0, .from = step * 48});
//     return batch(map(paths, decode{}, {.replicas = 4}), {.count = 48});
//   });
//
// The function describes the topology whose batches are for the steps from `step` on. It is called
// when the training has started, and again whenever it has gone back to a step before; what was
// under way is dropped then. A source that begins anywhere at once (samples()) makes that cheap,
// and where the batches are a function of their step, losses and weights are those of a training
// that nothing disturbed (sync; asynchronous steps have no order, and some samples are fed twice or
// not at all when they go back). The last batches, 64 at most, are kept until `look` has seen their
// losses, so a short way back makes nothing anew. What a topology keeps, such as cached(), goes
// with it.
//
// What the topology gives is, by name, what the graph's inputs take (input()):
//
//   flow<vector<S>>   S lists its fields (troupe::fields), or is a sample of such: each field is an
//                     input, and the batch's are stacked along a new first dimension. Fields are
//                     tensors, numbers, bools and arrays of numbers.
//   flow<S>           its fields are tensors, and inputs as they are
//
// FED-1  Sync: the n-th batch is step n of all workers: of m rows worker i of w takes
//       [m * i / w, m * (i + 1) / w). Fields without rows go to each. Async: each batch goes to one
//       worker that has room, all of it.
//       Where workers' inputs are of fixed shapes, w divides m.
// FED-2  The training holds the pipeline back, and the pipeline the training: neither keeps more
//       than the edges hold, the inputs' room (feed_room) and the last batches, as told above.
// FED-3  However it ends, the topology has ended before feed() returns.
//
// Threading: the thread that calls is the training's; `look` runs on it. Topologies have their own,
// and one that ends is waited for, with the stage's call that is under way.
// Ownership: what the function refers to outlives the call.
// Errors: usage: the training is not fed, a mistake in the description; failed: a stage, the
// training, or the flow ended before the last step. The training has ended then, too.

#include "troupe/actors/flow/model_stage.hpp"
#include "troupe/actors/flow/topology.hpp"
#include "troupe/actors/session/session.hpp"
#include "troupe/devices/half.hpp"
#include "troupe/runtime/flow/sample_stages.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

struct feed_options {
  // Of each topology; `member` makes it one of the session's cluster.
  topology_options topology{};
  // Sync: where the flow ends before the training's last step, the training ends in good order
  // behind the last batch (training_options::may_finish); else that is an error.
  bool finishes_with_flow = false;
};

// The tensors of a step, by the names of inputs.
using fed_batch = std::vector<std::pair<std::string, tensor>>;

// Where the batches of one topology go.
class training_inlet {
 public:
  virtual ~training_inlet() = default;
  virtual result<void> take(fed_batch b) = 0;
};
using describe_feed =
    std::function<void(topology&, std::uint64_t step, std::shared_ptr<training_inlet>)>;
using look_at_training = std::function<void(const training_event&)>;
result<training_event> feed_by(training& run, const describe_feed& describe,
                               const look_at_training& look, const feed_options& o);

// --- how items become tensors --------------------------------------------------------------------

template <class T>
inline constexpr bool is_fed_number =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, std::int32_t> ||
    std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::uint8_t> || std::is_same_v<T, bool> ||
    std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
template <class T>
struct fed_element {
  using type = T;
};
template <>
struct fed_element<bool> {
  using type = std::uint8_t;
};
template <class T>
struct fed_row {
  static constexpr bool fits = false;
};
template <class T>
  requires is_fed_number<T>
struct fed_row<T> {
  static constexpr bool fits = true;
  using element = typename fed_element<T>::type;
  static std::vector<std::int64_t> shape(const T&) { return {}; }
  static void write(const T& v, element* to) { *to = static_cast<element>(v); }
};
template <class T, std::size_t N>
  requires(is_fed_number<T> && !std::is_same_v<T, bool>)
struct fed_row<std::array<T, N>> {
  static constexpr bool fits = true;
  using element = T;
  static std::vector<std::int64_t> shape(const std::array<T, N>&) {
    return {static_cast<std::int64_t>(N)};
  }
  static void write(const std::array<T, N>& v, T* to) { std::copy(v.begin(), v.end(), to); }
};
template <class T>
  requires(is_fed_number<T> && !std::is_same_v<T, bool>)
struct fed_row<std::vector<T>> {
  static constexpr bool fits = true;
  using element = T;
  static std::vector<std::int64_t> shape(const std::vector<T>& v) {
    return {static_cast<std::int64_t>(v.size())};
  }
  static void write(const std::vector<T>& v, T* to) { std::copy(v.begin(), v.end(), to); }
};

// `rows` tensors of that type and shape as one that is not filled. Errors: too many, or none.
result<tensor> make_fed(dtype type, std::size_t rows, const std::vector<std::int64_t>& shape);
error unequal_rows(std::string_view field, std::size_t row);

template <class Field, class Items, class Get>
result<tensor> stack_field(std::string_view name, const Items& items, Get&& get) {
  if constexpr (std::is_same_v<Field, tensor>) {
    std::vector<tensor> parts;
    parts.reserve(items.size());
    for (const auto& i : items) {
      if (!get(i)) return error(error_code::failed, "'" + std::string(name) + "' has no tensor");
      parts.push_back(get(i));
    }
    auto all = stack(parts);
    if (!all) return std::move(all.error().while_doing("'" + std::string(name) + "'"));
    return all;
  } else {
    using row = fed_row<Field>;
    if (items.empty()) return error(error_code::failed, "a batch of nothing");
    const auto shape = row::shape(get(items.front()));
    auto all = make_fed(dtype_of<typename row::element>, items.size(), shape);
    if (!all) return all;
    auto* to = all->template data<typename row::element>();
    const auto size = static_cast<std::size_t>(all->elements()) / items.size();
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (row::shape(get(items[i])) != shape) return unequal_rows(name, i);
      row::write(get(items[i]), to + i * size);
    }
    return all;
  }
}

template <class T>
struct fed_struct {
  using type = T;
  static const T& of(const T& v) { return v; }
};
template <class T>
struct fed_struct<sample<T>> {
  using type = T;
  static const T& of(const sample<T>& s) { return s.value; }
};

template <class S>
constexpr bool has_fed_fields() {
  bool fit = true;
  if constexpr (has_fields<S>) {
    [&]<auto... M>(const field_list<M...>&) {
      ((fit =
            fit && (std::is_same_v<std::remove_cvref_t<decltype(std::declval<S&>().*M)>, tensor> ||
                    fed_row<std::remove_cvref_t<decltype(std::declval<S&>().*M)>>::fits)),
       ...);
    }(S::fields);
  } else {
    fit = false;
  }
  return fit;
}
template <class S>
constexpr bool has_tensor_fields() {
  bool fit = true;
  if constexpr (has_fields<S>) {
    [&]<auto... M>(const field_list<M...>&) {
      ((fit = fit && std::is_same_v<std::remove_cvref_t<decltype(std::declval<S&>().*M)>, tensor>),
       ...);
    }(S::fields);
  } else {
    fit = false;
  }
  return fit;
}

template <class T>
inline constexpr bool can_be_fed = has_tensor_fields<typename fed_struct<T>::type>();
template <class T>
inline constexpr bool can_be_fed<std::vector<T>> = has_fed_fields<typename fed_struct<T>::type>();

template <class T>
result<fed_batch> fed_batch_of(const std::vector<T>& items) {
  using whole = fed_struct<T>;
  using S = typename whole::type;
  fed_batch all;
  std::optional<error> wrong;
  std::size_t f = 0;
  [&]<auto... M>(const field_list<M...>& list) {
    (
        [&] {
          const auto name = list.names[f++];
          if (wrong) return;
          using field = std::remove_cvref_t<decltype(std::declval<S&>().*M)>;
          auto t = stack_field<field>(name, items,
                                      [](const T& i) -> const field& { return whole::of(i).*M; });
          if (t)
            all.emplace_back(std::string(name), std::move(*t));
          else
            wrong = std::move(t.error());
        }(),
        ...);
  }(S::fields);
  if (wrong) return std::move(*wrong);
  return all;
}
template <class T>
result<fed_batch> fed_batch_of(const T& item) {
  fed_batch all;
  fed_struct<T>::type::fields.each(
      fed_struct<T>::of(item),
      [&](std::string_view name, const tensor& t) { all.emplace_back(std::string(name), t); });
  return all;
}

// --- feed() --------------------------------------------------------------------------------------

// Runs the training to its end, and gives its last event: `finished`, or `stopped` or `suspended`
// where `look` or somebody else did that. `look` sees every event, also `none` some times a second
// while there is nothing to tell; where the pipeline fails, `failed` is the last. The training may
// have begun.
template <class F>
result<training_event> feed(training& run, F describe, const look_at_training& look = {},
                            const feed_options& o = {},
                            source_location where = source_location::current()) {
  constexpr bool fits = std::is_invocable_v<F&, topology&, std::uint64_t>;
  static_assert(fits, "feed: the function takes (topology&, std::uint64_t step)");
  if constexpr (fits) {
    using T =
        typename std::remove_cvref_t<std::invoke_result_t<F&, topology&, std::uint64_t>>::item_type;
    constexpr bool has_names = can_be_fed<T>;
    static_assert(has_names,
                  "feed: the flow's items are batches (std::vector) of a struct that lists its "
                  "fields, which are tensors or numbers, or such a struct of tensors alone");
    if constexpr (has_names) {
      return feed_by(
          run,
          [&](topology& t, std::uint64_t step, std::shared_ptr<training_inlet> to) {
            for_each(
                describe(t, step),
                [to = std::move(to)](const T& item) -> result<void> {
                  auto b = fed_batch_of(item);
                  if (!b) return std::move(b.error());
                  return to->take(std::move(*b));
                },
                {.name = "training", .blocks = true}, where);
          },
          look, o);
    }
  }
  return error(error_code::usage, "");
}

}  // namespace troupe
