// The largest and the mean of windows of an image, and their gradients. x [n, c, h, w] -> y [n, c,
// oh, ow]; a plane is one image of one channel.

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace troupe::host {
namespace {

struct window {
  std::array<std::int64_t, 2> size{1, 1}, strides{1, 1}, before{0, 0}, after{0, 0}, dilations{1, 1};
  bool counts_padding = false;

  explicit window(const attributes& attrs) {
    const auto read = [&](std::string_view name, auto& to) {
      if (const auto all = attrs.integers(name); all.size() == 2) to = {all[0], all[1]};
    };
    read("window", size);
    strides = size;
    read("strides", strides);
    read("before", before);
    read("after", after);
    read("dilations", dilations);
    counts_padding = attrs.integer("count_padding") != 0;
  }
  bool is_sound() const noexcept {
    for (std::size_t i = 0; i < 2; ++i)
      if (size[i] < 1 || strides[i] < 1 || dilations[i] < 1 || before[i] < 0 || after[i] < 0)
        return false;
    return true;
  }
};

// Elements first to end - 1 of a window at `out` that lie inside of `length`.
struct span_of_window {
  std::int64_t first, end;
  static span_of_window at(std::int64_t out, std::int64_t length, std::int64_t size,
                           std::int64_t stride, std::int64_t before,
                           std::int64_t dilation) noexcept {
    const auto begin = out * stride - before;
    const auto first = begin >= 0 ? 0 : (-begin + dilation - 1) / dilation;
    const auto end = begin >= length ? 0 : std::min(size, (length - 1 - begin) / dilation + 1);
    return {std::min(first, end), end};
  }
};

class pooling : public kernel {
 public:
  pooling(std::string_view op, const attributes& attrs, host_device& device)
      : op_(op), team_(device.team()), window_(attrs) {}

 protected:
  // `image` and `pooled` have n, c in common.
  result<void> find(const tensor_spec& image, const tensor_spec& pooled,
                    std::span<const tensor_spec> inputs) {
    if (image.shape.rank() != 4 || pooled.shape.rank() != 4 || !window_.is_sound())
      return unfit(op_, "takes images of rank 4 and windows of at least 1", inputs);
    if (image.type != pooled.type || (image.type != dtype::f32 && image.type != dtype::f64))
      return unfit(op_, "takes f32 or f64", inputs);
    if (image.shape.size(0) != pooled.shape.size(0) || image.shape.size(1) != pooled.shape.size(1))
      return unfit(op_, "images or channels differ", inputs);
    planes_ = image.shape.size(0) * image.shape.size(1);
    h_ = image.shape.size(2), w_ = image.shape.size(3), oh_ = pooled.shape.size(2),
    ow_ = pooled.shape.size(3);
    columns_.clear();
    for (std::int64_t x = 0; x < ow_; ++x) columns_.push_back(across(x));
    type_ = image.type;
    constexpr double element_ns = 0.5;
    cut_ = tile_cut::by_cost(
        planes_,
        element_ns * static_cast<double>(h_ * w_ + oh_ * ow_ * window_.size[0] * window_.size[1]),
        tile_least_ns);
    return {};
  }
  // compute(first plane, end), on several threads.
  template <class Compute>
  result<void> for_planes(Compute compute) const {
    return team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
      return compute(cut_.begin(tile), cut_.begin(tile) + cut_.size(tile));
    });
  }
  span_of_window across(std::int64_t x) const noexcept {
    return span_of_window::at(x, w_, window_.size[1], window_.strides[1], window_.before[1],
                              window_.dilations[1]);
  }
  span_of_window down(std::int64_t y) const noexcept {
    return span_of_window::at(y, h_, window_.size[0], window_.strides[0], window_.before[0],
                              window_.dilations[0]);
  }
  std::int64_t row(std::int64_t y, std::int64_t k) const noexcept {
    return y * window_.strides[0] - window_.before[0] + k * window_.dilations[0];
  }
  std::int64_t column(std::int64_t x, std::int64_t k) const noexcept {
    return x * window_.strides[1] - window_.before[1] + k * window_.dilations[1];
  }

  // Those of a plane.
  result<void> check_places(const std::int32_t* place) const {
    std::int32_t least = 0, most = -1;
    for (std::int64_t i = 0; i < oh_ * ow_; ++i) {
      least = std::min(least, place[i]);
      most = std::max(most, place[i]);
    }
    if (least >= -1 && most < h_ * w_) return {};
    return error(error_code::failed, fmt::format("{}: a place is {}, expected -1 to {}", op_,
                                                 least < -1 ? least : most, h_ * w_ - 1));
  }

  // Elements of a window along an axis that are not behind the padding.
  std::int64_t padded(std::size_t axis, std::int64_t out, std::int64_t length) const noexcept {
    const auto begin = out * window_.strides[axis] - window_.before[axis];
    return std::clamp<std::int64_t>(
        (length + window_.after[axis] - 1 - begin) / window_.dilations[axis] + 1, 0,
        window_.size[axis]);
  }

  std::string_view op_;
  tile_team& team_;
  tile_cut cut_;  // of planes
  window window_;
  std::int64_t planes_ = 0, h_ = 0, w_ = 0, oh_ = 0, ow_ = 0;
  std::vector<span_of_window> columns_;  // of each x of the result
  dtype type_ = dtype::f32;
};

// -> values, and the place of each in its plane (i32; -1: the window has no elements). Of equal
// ones the first; a NaN is the largest.
class max_pool final : public pooling {
 public:
  max_pool(const attributes& attrs, host_device& device) : pooling("max_pool2d", attrs, device) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 1, outputs, 2); !ok) return ok;
    if (outputs[1] != tensor_spec{dtype::i32, outputs[0].shape})
      return unfit(op_, "places are i32 of the result's shape", outputs);
    return find(inputs[0], outputs[0], inputs);
  }
  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return for_planes([&](std::int64_t first, std::int64_t end) -> result<void> {
      type_ == dtype::f32 ? run_as<float>(inputs[0], outputs, first, end)
                          : run_as<double>(inputs[0], outputs, first, end);
      return {};
    });
  }

 private:
  template <class T>
  void run_as(const tensor& image, std::span<tensor> outputs, std::int64_t first,
              std::int64_t end) const {
    const auto* x = image.data<T>() + first * h_ * w_;
    auto* best = outputs[0].data<T>() + first * oh_ * ow_;
    auto* place = outputs[1].data<std::int32_t>() + first * oh_ * ow_;
    const bool is_dense = window_.size == std::array<std::int64_t, 2>{2, 2} &&
                          window_.strides == window_.size &&
                          window_.before == std::array<std::int64_t, 2>{0, 0} &&
                          window_.dilations == std::array<std::int64_t, 2>{1, 1};
    for (auto p = first; p < end; ++p, x += h_ * w_)
      for (std::int64_t y = 0; y < oh_; ++y, best += ow_, place += ow_)
        if (is_dense && 2 * y + 1 < h_ && 2 * ow_ <= w_)
          row_of_quarters(x + 2 * y * w_, static_cast<std::int32_t>(2 * y * w_), best, place);
        else
          row_of_windows(x, y, best, place);
  }

  template <class T>
  void row_of_windows(const T* x, std::int64_t y, T* best, std::int32_t* place) const {
    const auto rows = down(y);
    for (std::int64_t ox = 0; ox < ow_; ++ox) {
      T b = -std::numeric_limits<T>::infinity();
      std::int64_t at = -1;
      const auto across = columns_[static_cast<std::size_t>(ox)];
      for (auto ky = rows.first; ky < rows.end; ++ky)
        for (auto kx = across.first; kx < across.end; ++kx) {
          const auto i = row(y, ky) * w_ + column(ox, kx);
          if (at < 0 || x[i] > b || (x[i] != x[i] && b == b)) b = x[i], at = i;
        }
      best[ox] = b;
      place[ox] = static_cast<std::int32_t>(at);
    }
  }

  // Windows of 2 x 2 side by side: what most networks have. Written so that GCC vectorises it.
  template <class T>
  void row_of_quarters(const T* __restrict x, std::int32_t first, T* __restrict best,
                       std::int32_t* __restrict place) const {
    const auto* below = x + w_;
    const auto width = static_cast<std::int32_t>(w_);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(ow_); ++i) {
      const T a = x[2 * i], b = x[2 * i + 1], c = below[2 * i], d = below[2 * i + 1];
      const bool is_b = b > a || (b != b && a == a);
      const T top = is_b ? b : a;
      const std::int32_t of_top = is_b ? 1 : 0;
      const bool is_d = d > c || (d != d && c == c);
      const T bottom = is_d ? d : c;
      const std::int32_t of_bottom = is_d ? width + 1 : width;
      const bool is_bottom = bottom > top || (bottom != bottom && top == top);
      best[i] = is_bottom ? bottom : top;
      place[i] = first + 2 * i + (is_bottom ? of_bottom : of_top);
    }
  }
};

// (dy, places) -> dx: each element of dy to its place; several to one place add up, in their order.
class max_pool_grad final : public pooling {
 public:
  max_pool_grad(const attributes& attrs, host_device& device)
      : pooling("max_pool2d_grad", attrs, device) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 2, outputs, 1); !ok) return ok;
    if (inputs[1] != tensor_spec{dtype::i32, inputs[0].shape})
      return unfit(op_, "places are i32 of dy's shape", inputs);
    return find(outputs[0], inputs[0], inputs);
  }
  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return for_planes([&](std::int64_t first, std::int64_t end) {
      return type_ == dtype::f32 ? run_as<float>(inputs, outputs[0], first, end)
                                 : run_as<double>(inputs, outputs[0], first, end);
    });
  }

 private:
  template <class T>
  result<void> run_as(std::span<const tensor> inputs, tensor& out, std::int64_t first,
                      std::int64_t end) const {
    const auto elements = oh_ * ow_;
    const auto* dy = inputs[0].data<T>() + first * elements;
    const auto* place = inputs[1].data<std::int32_t>() + first * elements;
    auto* dx = out.data<T>() + first * h_ * w_;
    for (auto p = first; p < end; ++p, dx += h_ * w_, dy += elements, place += elements) {
      if (auto ok = check_places(place); !ok) return ok;
      std::fill_n(dx, h_ * w_, T{});
      for (std::int64_t i = 0; i < elements; ++i)
        if (place[i] >= 0) dx[place[i]] += dy[i];
    }
    return {};
  }
};

// (x, places) -> what max_pool would have taken there; nothing: 0.
class max_pool_take final : public pooling {
 public:
  max_pool_take(const attributes& attrs, host_device& device)
      : pooling("max_pool2d_take", attrs, device) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 2, outputs, 1); !ok) return ok;
    if (inputs[1] != tensor_spec{dtype::i32, outputs[0].shape})
      return unfit(op_, "places are i32 of the result's shape", inputs);
    return find(inputs[0], outputs[0], inputs);
  }
  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return for_planes([&](std::int64_t first, std::int64_t end) {
      return type_ == dtype::f32 ? run_as<float>(inputs, outputs[0], first, end)
                                 : run_as<double>(inputs, outputs[0], first, end);
    });
  }

 private:
  template <class T>
  result<void> run_as(std::span<const tensor> inputs, tensor& out, std::int64_t first,
                      std::int64_t end) const {
    const auto elements = oh_ * ow_;
    const auto* x = inputs[0].data<T>() + first * h_ * w_;
    const auto* place = inputs[1].data<std::int32_t>() + first * elements;
    auto* y = out.data<T>() + first * elements;
    for (auto p = first; p < end; ++p, x += h_ * w_, y += elements, place += elements) {
      if (auto ok = check_places(place); !ok) return ok;
      for (std::int64_t i = 0; i < elements; ++i) y[i] = place[i] >= 0 ? x[place[i]] : T{};
    }
    return {};
  }
};

// The mean of what lies inside of x, or (count_padding) inside of x and what pads it; windows
// without elements give 0. With Gradient: each element of dy, in equal parts, to all that made it.
template <bool Gradient>
class avg_pool final : public pooling {
 public:
  avg_pool(const attributes& attrs, host_device& device)
      : pooling(Gradient ? "avg_pool2d_grad" : "avg_pool2d", attrs, device) {}

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(op_, inputs, 1, outputs, 1); !ok) return ok;
    return Gradient ? find(outputs[0], inputs[0], inputs) : find(inputs[0], outputs[0], inputs);
  }
  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return for_planes([&](std::int64_t first, std::int64_t end) -> result<void> {
      type_ == dtype::f32 ? run_as<float>(inputs[0], outputs[0], first, end)
                          : run_as<double>(inputs[0], outputs[0], first, end);
      return {};
    });
  }

 private:
  template <class T>
  void run_as(const tensor& in, tensor& out, std::int64_t first, std::int64_t end) const {
    const auto* from = in.data<T>() + first * (Gradient ? oh_ * ow_ : h_ * w_);
    auto* to = out.data<T>() + first * (Gradient ? h_ * w_ : oh_ * ow_);
    if constexpr (Gradient) std::fill_n(to, (end - first) * h_ * w_, T{});
    for (auto p = first; p < end; ++p) {
      for (std::int64_t y = 0; y < oh_; ++y) {
        const auto rows = down(y);
        for (std::int64_t x = 0; x < ow_; ++x) {
          const auto across = columns_[static_cast<std::size_t>(x)];
          const auto inside = window_.counts_padding
                                  ? padded(0, y, h_) * padded(1, x, w_)
                                  : (rows.end - rows.first) * (across.end - across.first);
          const auto count = std::max<std::int64_t>(inside, 1);
          const auto o = y * ow_ + x;
          T sum = Gradient ? from[o] / static_cast<T>(count) : T{};
          for (auto ky = rows.first; ky < rows.end; ++ky)
            for (auto kx = across.first; kx < across.end; ++kx) {
              const auto i = row(y, ky) * w_ + column(x, kx);
              if constexpr (Gradient)
                to[i] += sum;
              else
                sum += from[i];
            }
          if constexpr (!Gradient) to[o] = sum / static_cast<T>(count);
        }
      }
      from += Gradient ? oh_ * ow_ : h_ * w_;
      to += Gradient ? h_ * w_ : oh_ * ow_;
    }
  }
};

}  // namespace

void add_pooling_kernels(kernel_table& table) {
  table.add("max_pool2d", row_of<max_pool>());
  table.add("max_pool2d_grad", row_of<max_pool_grad>());
  table.add("max_pool2d_take", row_of<max_pool_take>());
  table.add("avg_pool2d", row_of<avg_pool<false>>());
  table.add("avg_pool2d_grad", row_of<avg_pool<true>>());
}

}  // namespace troupe::host
