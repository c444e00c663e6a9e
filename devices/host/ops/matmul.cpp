// Products of matrices, one for each element of the dimensions in front (batches), which are
// broadcast; or their sum. Those of f16 and bf16 are widened around it, so that a sum of batches is
// rounded once, too.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/broadcast.hpp"
#include "troupe/devices/host/loops/gemm.hpp"
#include "troupe/devices/host/piecewise_kernel.hpp"
#include "troupe/devices/host/widened_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

namespace troupe::host {
namespace {

// The dimensions in front of the last two.
shape batches_of(const shape& s) {
  std::array<dim, shape::rank_max> dims{};
  const auto rank = s.rank() - 2;
  for (std::size_t i = 0; i < rank; ++i) dims[i] = s[i];
  return *shape::from(std::span(dims).first(rank));
}

class matmul final : public piecewise_kernel {
 public:
  matmul(const attributes& attrs, host_device& device)
      : team_(device.team()),
        transpose_a_(attrs.integer("transpose_a") != 0),
        transpose_b_(attrs.integer("transpose_b") != 0),
        is_sum_(attrs.integer("sum_batches") != 0),
        is_fast_(attrs.integer("fast") != 0) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports("matmul", inputs, 2, outputs, 1); !ok) return ok;
    const auto &a = inputs[0], &b = inputs[1], &c = outputs[0];
    type_ = c.type;
    if (a.type != type_ || b.type != type_ || (type_ != dtype::f32 && type_ != dtype::f64))
      return unfit("matmul", "operands are all f32 or all f64", inputs);
    const auto ra = a.shape.rank(), rb = b.shape.rank(), rc = c.shape.rank();
    if (ra < 2 || rb < 2 || rc < 2)
      return unfit("matmul", "operands have two or more dimensions", inputs);
    each_ = {.m = a.shape.size(transpose_a_ ? ra - 1 : ra - 2),
             .n = b.shape.size(transpose_b_ ? rb - 2 : rb - 1),
             .k = a.shape.size(transpose_a_ ? ra - 2 : ra - 1),
             .transpose_a = transpose_a_,
             .transpose_b = transpose_b_};
    if (b.shape.size(transpose_b_ ? rb - 1 : rb - 2) != each_.k ||
        c.shape.size(rc - 2) != each_.m || c.shape.size(rc - 1) != each_.n)
      return unfit("matmul", "inner dimensions differ", inputs);
    if (auto ok = is_sum_ ? find_sum(a.shape, b.shape, inputs)
                          : find_batches(a.shape, b.shape, c.shape, inputs);
        !ok)
      return ok;
    scratch_.resize(team_.threads());
    for (auto& s : scratch_) s.reserve(each_.k);
    cut();
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return type_ == dtype::f32 ? run_as<float>(inputs, outputs, nullptr)
                               : run_as<double>(inputs, outputs, nullptr);
  }

  bool makes_pieces() const noexcept override {
    return by_ == dimension::batches || (by_ == dimension::rows && places_.size() == 1);
  }

  result<void> run_by_pieces(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs,
                             piece_user& user) override {
    return type_ == dtype::f32 ? run_as<float>(inputs, outputs, &user)
                               : run_as<double>(inputs, outputs, &user);
  }

 private:
  struct place {
    std::int64_t a, b;  // elements from the beginning of an operand
  };

  // Where the matrices of each batch lie. All rows of all batches are one matrix where b is the
  // same for all of them.
  result<void> find_batches(const shape& a, const shape& b, const shape& c,
                            std::span<const tensor_spec> inputs) {
    const auto batches = batches_of(c);
    const auto count = batches.elements();
    if (!transpose_a_ && batches_of(b).elements() == 1 && batches_of(a).elements() == count) {
      each_.m *= count;
      places_.assign(1, {0, 0});
      return {};
    }
    return find_places(a, b, batches, inputs);
  }

  result<void> find_sum(const shape& a, const shape& b, std::span<const tensor_spec> inputs) {
    const auto of_a = batches_of(a), of_b = batches_of(b);
    // A^T B, summed, is one product over all rows of all batches.
    if (of_a == of_b && transpose_a_ && !transpose_b_) {
      each_.k *= of_a.elements();
      places_.assign(1, {0, 0});
      return {};
    }
    // Broadcast to each other, from the last dimension on.
    std::array<dim, shape::rank_max> dims{};
    const auto rank = std::max(of_a.rank(), of_b.rank());
    for (std::size_t i = 0; i < rank; ++i) {
      const auto of = [&](const shape& s) {
        return i + s.rank() < rank ? dim{1, 0} : s[i + s.rank() - rank];
      };
      dims[i] = of(of_a).size == 1 ? of(of_b) : of(of_a);
    }
    const auto all = shape::from(std::span(dims).first(rank));
    if (!all) return unfit("matmul", "too many batches", inputs);
    return find_places(a, b, *all, inputs);
  }

  result<void> find_places(const shape& a, const shape& b, const shape& batches,
                           std::span<const tensor_spec> inputs) {
    const std::array operands{batches_of(a), batches_of(b)};
    const auto walk = broadcast_walk::over(batches, operands);
    if (!walk) return unfit("matmul", "batches cannot be broadcast", inputs);
    places_.clear();
    places_.reserve(static_cast<std::size_t>(batches.elements()));
    for (std::int64_t block = 0; block < walk->blocks(); ++block)
      for (std::int64_t r = 0; r < walk->rows(); ++r)
        for (std::int64_t c = 0; c < walk->columns(); ++c) {
          const auto at = [&](std::size_t k) {
            return walk->offset(k, block) + r * walk->row_step(k) + (walk->advances(k) ? c : 0);
          };
          places_.push_back({at(0) * each_.m * each_.k, at(1) * each_.k * each_.n});
        }
    return {};
  }

  // By batches, where each has a result of its own; else by rows or columns of all of them. Each
  // part of one f32 product packs an operand of its own: parts of 64 rows take 4 % longer together
  // than the whole, of 32 rows 20 %, of 256 columns 8 %, of 64 columns 35 % (2048 x 512 x 128 and
  // what a language model makes of it).
  void cut() {
    if (cut_inner()) return;
    const auto all = gemm_ns(each_, size_of(type_)) * static_cast<double>(places_.size());
    constexpr std::int64_t column_grain = 256, f64_grain = 16;
    const bool is_f32 = type_ == dtype::f32;
    by_ = !is_sum_ && places_.size() > 1                             ? dimension::batches
          : (is_f32 ? each_.m >= 2 * row_grain : each_.m >= each_.n) ? dimension::rows
                                                                     : dimension::columns;
    const auto items = by_ == dimension::batches ? static_cast<std::int64_t>(places_.size())
                       : by_ == dimension::rows  ? each_.m
                                                 : each_.n;
    const auto grain = by_ == dimension::batches ? 1
                       : !is_f32                 ? f64_grain
                       : by_ == dimension::rows  ? row_grain
                                                 : column_grain;
    cut_ = tile_cut::by_cost(items, items == 0 ? 0 : all / static_cast<double>(items),
                             tile_least_ns, grain);
  }

  // With "fast": along what is summed, where that is long and the result small, so that no operand
  // is packed twice. The sums of all parts are added up.
  bool cut_inner() {
    parts_.clear();
    if (!is_fast_ || type_ != dtype::f32 || places_.size() != 1 ||
        each_.k < 4 * std::max(each_.m, each_.n))
      return false;
    by_ = dimension::inner;
    constexpr std::int64_t grain = 16;
    cut_ = tile_cut::by_cost(each_.k, gemm_ns(each_, sizeof(float)) / static_cast<double>(each_.k),
                             tile_least_ns, grain);
    parts_.resize(cut_.tiles() * static_cast<std::size_t>(each_.m * each_.n));
    return cut_.tiles() > 1;
  }

  result<void> run_inner(const float* a, const float* b, float* c) {
    const auto size = static_cast<std::size_t>(each_.m * each_.n);
    auto done = team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t worker) -> result<void> {
      const auto first = cut_.begin(tile);
      auto part = each_;
      part.strides = {each_.stride_a(), each_.stride_b(), each_.stride_c()};
      part.k = cut_.size(tile);
      return gemm(part, a + first * (transpose_a_ ? each_.stride_a() : 1),
                  b + first * (transpose_b_ ? 1 : each_.stride_b()), parts_.data() + tile * size,
                  false, scratch_[worker]);
    });
    if (!done) return done;
    std::copy_n(parts_.data(), size, c);
    for (std::size_t tile = 1; tile < cut_.tiles(); ++tile)
      for (std::size_t i = 0; i < size; ++i) c[i] += parts_[tile * size + i];
    return {};
  }

  template <class T>
  result<void> run_as(std::span<const tensor> inputs, std::span<tensor> outputs, piece_user* user) {
    set_up_kernel_thread();
    const auto *a = inputs[0].data<T>(), *b = inputs[1].data<T>();
    auto* c = outputs[0].data<T>();
    if constexpr (std::is_same_v<T, float>)
      if (by_ == dimension::inner) return run_inner(a, b, c);
    if (places_.empty() && is_sum_) std::fill(c, c + each_.m * each_.n, T{});
    auto done = team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t worker) -> result<void> {
      // The same pieces whether somebody uses them or not: for a few rows oneDNN may sum in another
      // order.
      const auto end = cut_.begin(tile) + cut_.size(tile),
                 piece = makes_pieces() ? items_of_piece() : cut_.each;
      std::int64_t count = 0;
      for (auto from = cut_.begin(tile); from < end; from += count) {
        count = end - from < piece + piece / 2 ? end - from : piece;  // none that is much smaller
        if (auto ok = multiply(a, b, c, from, count, scratch_[worker]); !ok) return ok;
        if (user != nullptr)
          user->finished(from * elements_of_item(), (from + count) * elements_of_item(), worker);
      }
      return {};
    });
    if (!done) return std::move(done.error()).while_doing("matmul");
    return {};
  }

  // Rows are few enough for the cache, and (of f32) as many as a part should have.
  std::int64_t items_of_piece() const noexcept {
    const auto grain = by_ == dimension::rows ? row_grain : 1,
               few = piece_elements / std::max<std::int64_t>(1, elements_of_item());
    return std::max(grain, few / grain * grain);
  }
  std::int64_t elements_of_item() const noexcept {
    return by_ == dimension::batches ? each_.m * each_.n : each_.n;
  }

  // `count` of the items that tiles are made of.
  template <class T>
  result<void> multiply(const T* a, const T* b, T* c, std::int64_t first, std::int64_t count,
                        gemm_scratch& scratch) const {
    std::size_t batch = 0, end = places_.size();
    gemm_part part{each_};
    if (by_ == dimension::batches)
      batch = static_cast<std::size_t>(first), end = batch + static_cast<std::size_t>(count);
    else if (count < cut_.items)
      part =
          by_ == dimension::rows ? rows_of(each_, first, count) : columns_of(each_, first, count);
    for (bool adds = false; batch < end; ++batch, adds = is_sum_) {
      auto* to = c + part.c + (is_sum_ ? 0 : static_cast<std::int64_t>(batch) * each_.m * each_.n);
      if (auto ok = gemm(part.shape, a + places_[batch].a + part.a, b + places_[batch].b + part.b,
                         to, adds, scratch);
          !ok)
        return ok;
    }
    return {};
  }

  enum class dimension : std::uint8_t { batches, rows, columns, inner };

  static constexpr std::int64_t row_grain = 64;

  tile_team& team_;
  bool transpose_a_, transpose_b_, is_sum_, is_fast_;
  dtype type_ = dtype::f32;
  gemm_shape each_;
  std::vector<place> places_;  // of each batch, or of all of them together
  dimension by_ = dimension::rows;
  tile_cut cut_;
  std::vector<gemm_scratch> scratch_;  // by worker
  std::vector<float> parts_;           // by tile, of a product that is cut along what is summed
};

}  // namespace

void add_matmul_kernel(kernel_table& table) { table.add("matmul", widened_row_of<matmul>()); }

}  // namespace troupe::host
