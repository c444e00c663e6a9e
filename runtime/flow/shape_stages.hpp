#pragma once
// The stages that give a topology its shape, whatever the type of its items: merge, zip, deal and
// gather of replicas, batches, windows, lossy edges. flow.hpp makes them, with what must know the
// type as functions.

#include "troupe/runtime/flow/replica_control.hpp"
#include "troupe/runtime/flow/stage.hpp"
#include "troupe/runtime/flow/value_codec.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

namespace troupe {

// Items that a stage holds, for stage::keep(), and the same again. nullopt: these are no such
// bytes.
tensor kept_items(std::vector<flow_item>& items, const value_codec* type);
std::optional<std::vector<flow_item>> items_kept(const tensor& bytes, const value_codec* type);

// Of items that a shape holds, which it copies to write them. Null: it cannot.
template <class T>
const value_codec* held_codec() {
  if constexpr (std::is_copy_constructible_v<T>)
    return codec_of<T>();
  else
    return nullptr;
}
// Of a stage before which items may wait while a checkpoint is made, but need not: where they
// cannot be written, they have gone their way before.
inline item_types types_that_wait(item_types types) {
  for (const auto* t : types)
    if (t == nullptr) return {};
  return types;
}

// Several values as one, which they become by `make`; they are left moved from.
using value_pack = std::function<any_value(std::vector<any_value>&)>;

// Takes of every input in turn, as they come. `feedback`: the number of the one whose items come in
// by port `loop`; those come first, and others only while fewer than `credit` are under way.
std::unique_ptr<stage> make_merge(std::uint32_t inputs, std::uint32_t loop, std::uint32_t feedback,
                                  std::uint64_t credit);
// The n-th items of all inputs, as one. Ends with the input that ends first.
std::unique_ptr<stage> make_zip(std::uint32_t inputs, value_pack pack);
// Passes items on as they are: what comes back of a loop, dead letters of many.
std::unique_ptr<stage> make_pass();
// Gives each item to the replica that has least to do, or, with `hash`, to that of its hash.
// `control`: of replicas whose number may change, which have no hash.
std::unique_ptr<stage> make_deal(std::function<std::uint64_t(any_value&)> hash,
                                 std::shared_ptr<const replica_control> control = {});
// What replicas make, in the order in which their items were dealt, or as it comes.
std::unique_ptr<stage> make_gather(std::uint32_t inputs, bool keeps_order);
// `count` items as one, or fewer when the first has waited for `within_ns` (0: it may wait), or at
// the end.
// `as_they_come`: or as soon as the stage behind has room and nothing else is to do.
std::unique_ptr<stage> make_batch(std::uint64_t count, std::int64_t within_ns, bool as_they_come,
                                  value_pack pack);
// The last `count` items as one, each `step` items; the first when there are so many.
std::unique_ptr<stage> make_window(std::uint64_t count, std::uint64_t step, value_pack pack);
// What came within `every_ns`, as one; nothing where nothing came.
std::unique_ptr<stage> make_time_window(std::int64_t every_ns, value_pack pack);
// Keeps `count` items for a consumer that is busy, and drops the oldest for a newer one.
std::unique_ptr<stage> make_drop_oldest(std::uint64_t count);
// The first `count` items; then it needs no more.
std::unique_ptr<stage> make_first(std::uint64_t count);

}  // namespace troupe
