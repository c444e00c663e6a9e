#include "troupe/runtime/flow/sample_stages.hpp"

#include "troupe/devices/files/idx_sampler.hpp"
#include "troupe/runtime/flow/function_id.hpp"
#include "troupe/runtime/flow/value_codec.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;

// The output function of splitmix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

class shuffle_stage final : public stage {
 public:
  shuffle_stage(std::uint64_t seed, std::uint64_t hold) : seed_(seed), hold_(hold) {}

  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    flow_item coming{std::move(in), out.origin()};
    if (held_.size() < hold_) {
      held_.push_back(std::move(coming));
      return false;
    }
    std::swap(held_[draw()], coming);
    out.put_item(0, std::move(coming));
    return false;
  }
  bool end(std::uint32_t, stage_output&) override { return !held_.empty(); }
  bool go_on(stage_output& out) override {
    const auto at = draw();
    auto leaving = std::exchange(held_[at], std::move(held_.back()));
    held_.pop_back();
    out.put_item(0, std::move(leaving));
    return !held_.empty();
  }
  result<tensor> keep(const item_types& types) override {
    std::vector<flow_item> all;
    for (const auto& it : held_) all.push_back({it.value.copy(), it.origin, it.bytes});
    const auto held = kept_items(all, types.front());
    return saved_by([&](byte_writer& w) { write_tensor(w, held), w.number(drawn_); });
  }
  result<void> reopen(const tensor& kept, const item_types& types) override {
    tensor held;
    const bool is_read = load_from(kept, [&](byte_reader& r) {
      held = read_tensor(r);
      drawn_ = r.number<std::uint64_t>();
    });
    auto all = is_read ? items_kept(held, types.front()) : std::nullopt;
    if (!all || all->size() > hold_) return error(error_code::failed, "what it held is damaged");
    held_ = std::move(*all);
    return {};
  }

 private:
  std::size_t draw() noexcept {
    return static_cast<std::size_t>(random_of_sample(seed_, drawn_++) % held_.size());
  }
  std::uint64_t seed_, hold_, drawn_ = 0;
  std::vector<flow_item> held_;
};

class interleave_stage final : public stage {
 public:
  explicit interleave_stage(std::uint32_t inputs) : inputs_(inputs) {}

  bool take(std::uint32_t port, any_value&& in, stage_output& out) override {
    next_ = (port + 1) % inputs_;
    out.put_last(0, std::move(in));
    return false;
  }
  std::uint32_t choose(const stage_output& out) override {
    for (std::uint32_t i = 0; i < inputs_; ++i) {
      const auto port = (next_ + i) % inputs_;
      if (out.head(port) != nullptr) return port;
      if (!out.has_ended(port)) return no_port;
    }
    return no_port;
  }
  std::optional<tensor> save() const override {
    return saved_by([&](byte_writer& w) { w.number(next_); });
  }
  bool load(const tensor& saved) override {
    return load_from(saved, [&](byte_reader& r) { next_ = r.number<std::uint32_t>() % inputs_; });
  }

 private:
  std::uint32_t inputs_, next_ = 0;
};

}  // namespace

tensor own_copy(const tensor& t) {
  if (!t || t.on_device() != nullptr) return t;
  auto copy = tensor::make(t.spec());
  if (const auto from = t.bytes(); !from.empty())
    std::memcpy(copy.bytes().data(), from.data(), from.size());
  return copy;
}

std::uint64_t random_of_sample(std::uint64_t seed, std::uint64_t number) noexcept {
  return mix(mix(seed + golden) + (number + 1) * golden);
}

sample_order::sample_order(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count)
    : count_(count), key_(mix(mix(seed + golden) ^ mix(epoch + 2 * golden))) {
  if (count <= listed_max) {
    list_ = permutation(seed, epoch, static_cast<std::uint32_t>(count));
    return;
  }
  half_bits_ = static_cast<std::uint32_t>(std::bit_width(count - 1) + 1) / 2;
}

std::uint64_t sample_order::at(std::uint64_t position) const noexcept {
  if (!list_.empty()) return list_[static_cast<std::size_t>(position)];
  const auto mask = (std::uint64_t{1} << half_bits_) - 1;
  auto x = position;
  do {
    auto left = x >> half_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round)
      left = std::exchange(right, left ^ (mix(key_ + round * golden + right) & mask));
    x = left << half_bits_ | right;
  } while (x >= count_);
  return x;
}

std::unique_ptr<stage> make_shuffle(std::uint64_t seed, std::uint64_t hold) {
  return std::make_unique<shuffle_stage>(seed, hold);
}
std::unique_ptr<stage> make_interleave(std::uint32_t inputs) {
  return std::make_unique<interleave_stage>(inputs);
}

}  // namespace troupe
