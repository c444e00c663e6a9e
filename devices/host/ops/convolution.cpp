// Convolutions over two dimensions and their gradients. f32 by oneDNN, in the layouts that it asks for; f64 as products of matrices
// over columns of the image, since oneDNN has none.
//
// x [n, c, h, w], w [o, c / groups, kh, kw] -> y [n, o, oh, ow].

#include "devices/host/gemm.hpp"
#include "devices/host/host_device.hpp"
#include "devices/host/host_kernels.hpp"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::host {
namespace {

enum class part : std::uint8_t { output, input_gradient, weights_gradient };

struct geometry {
  std::array<std::int64_t, 4> x{}, w{}, y{};
  std::array<std::int64_t, 2> strides{1, 1}, before{0, 0}, after{0, 0}, dilations{1, 1};
  std::int64_t groups = 1;

  bool is_empty() const noexcept {
    const auto elements = [](const auto& s) { return s[0] * s[1] * s[2] * s[3]; };
    return elements(x) == 0 || elements(w) == 0 || elements(y) == 0;
  }
};

std::array<std::int64_t, 2> pair_of(const attributes& attrs, std::string_view name, std::int64_t otherwise) {
  const auto all = attrs.integers(name);
  return all.size() == 2 ? std::array{all[0], all[1]} : std::array{otherwise, otherwise};
}

// --- f32 ---

// A primitive and where its operands lie: those of the caller, or copies in another layout.
class dnnl_convolution {
 public:
  dnnl_convolution(const geometry& g, part p) : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using tag = dnnl::memory::format_tag;
    const auto dims = [](const auto& s) { return dnnl::memory::dims(s.begin(), s.end()); };
    const auto grouped = g.groups > 1 ? dnnl::memory::dims{g.groups, g.w[0] / g.groups, g.w[1], g.w[2], g.w[3]} : dims(g.w);
    constexpr auto f32 = dnnl::memory::data_type::f32;
    const dnnl::memory::desc x(dims(g.x), f32, tag::nchw), w(grouped, f32, g.groups > 1 ? tag::goihw : tag::oihw), y(dims(g.y), f32, tag::nchw);
    const dnnl::memory::desc any_x(dims(g.x), f32, tag::any), any_w(grouped, f32, tag::any), any_y(dims(g.y), f32, tag::any);
    const dnnl::memory::dims strides = dims(g.strides), before = dims(g.before), after = dims(g.after), dilations{g.dilations[0] - 1, g.dilations[1] - 1};
    constexpr auto direct = dnnl::algorithm::convolution_direct;
    const dnnl::convolution_forward::primitive_desc forward({dnnl::prop_kind::forward_training, direct, any_x, any_w, any_y, strides, dilations, before, after}, engine_);
    switch (p) {
      case part::output:
        primitive_ = dnnl::convolution_forward(forward);
        add(DNNL_ARG_SRC, x, forward.src_desc(), false);
        add(DNNL_ARG_WEIGHTS, w, forward.weights_desc(), false);
        add(DNNL_ARG_DST, y, forward.dst_desc(), true);
        break;
      case part::input_gradient: {
        const dnnl::convolution_backward_data::primitive_desc d({direct, any_x, any_w, any_y, strides, dilations, before, after}, engine_, forward);
        primitive_ = dnnl::convolution_backward_data(d);
        add(DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(), false);
        add(DNNL_ARG_WEIGHTS, w, d.weights_desc(), false);
        add(DNNL_ARG_DIFF_SRC, x, d.diff_src_desc(), true);
        break;
      }
      case part::weights_gradient: {
        const dnnl::convolution_backward_weights::primitive_desc d({direct, any_x, any_w, any_y, strides, dilations, before, after}, engine_, forward);
        primitive_ = dnnl::convolution_backward_weights(d);
        add(DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(), false);
        add(DNNL_ARG_SRC, x, d.src_desc(), false);
        add(DNNL_ARG_DIFF_WEIGHTS, w, d.diff_weights_desc(), true);
        break;
      }
    }
  }

  // Operands in the order in which they were added; the last is written.
  void run(const std::array<void*, 3>& data) {
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      auto& p = ports_[i];
      p.outside.set_data_handle(data[i]);
      if (p.before) p.before->execute(stream_, p.outside, p.inside);
    }
    primitive_.execute(stream_, arguments_);
    for (auto& p : ports_)
      if (p.after) p.after->execute(stream_, p.inside, p.outside);
    stream_.wait();
  }

 private:
  struct port {
    dnnl::memory outside, inside;  // the same where the layout is the caller's
    std::optional<dnnl::reorder> before, after;
  };

  void add(int argument, const dnnl::memory::desc& outside, const dnnl::memory::desc& inside, bool is_written) {
    port p{dnnl::memory(outside, engine_, nullptr), {}, {}, {}};
    p.inside = outside == inside ? p.outside : dnnl::memory(inside, engine_);
    if (outside != inside && !is_written) p.before.emplace(p.outside, p.inside);
    if (outside != inside && is_written) p.after.emplace(p.inside, p.outside);
    arguments_.emplace(argument, p.inside);
    ports_.push_back(std::move(p));
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  std::vector<port> ports_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// --- f64 ---

// One image and group at a time: columns [c kh kw, oh ow] of what each element of y sees of x.
class columns_convolution {
 public:
  explicit columns_convolution(const geometry& g)
      : g_(g), channels_(g.w[1]), rows_(g.w[1] * g.w[2] * g.w[3]), places_(g.y[2] * g.y[3]), columns_(static_cast<std::size_t>(rows_ * places_)) {
    scratch_.reserve(std::max({rows_, places_, g.w[0]}));
  }

  result<void> run(part p, const double* x, const double* w, const double* y, double* out) {
    const auto outputs = g_.w[0] / g_.groups;
    if (p == part::input_gradient) std::fill(out, out + g_.x[0] * g_.x[1] * g_.x[2] * g_.x[3], 0.0);
    for (std::int64_t n = 0; n < g_.x[0]; ++n)
      for (std::int64_t group = 0; group < g_.groups; ++group) {
        const auto at_x = (n * g_.x[1] + group * channels_) * g_.x[2] * g_.x[3], at_w = group * outputs * rows_, at_y = (n * g_.y[1] + group * outputs) * places_;
        auto ok = result<void>();
        if (p != part::input_gradient) unfold(x + at_x);
        if (p == part::output) ok = gemm({outputs, places_, rows_, false, false}, w + at_w, columns_.data(), out + at_y, false, scratch_);
        if (p == part::weights_gradient) ok = gemm({outputs, rows_, places_, false, true}, y + at_y, columns_.data(), out + at_w, n > 0, scratch_);
        if (p == part::input_gradient) ok = gemm({rows_, places_, outputs, true, false}, w + at_w, y + at_y, columns_.data(), false, scratch_);
        if (!ok) return ok;
        if (p == part::input_gradient) fold(out + at_x);
      }
    return {};
  }

 private:
  // Calls visit(column, x) for every element of a column that lies inside of x, and with x < 0 outside.
  template <class Visit>
  void each(Visit visit) const {
    std::int64_t at = 0;
    for (std::int64_t c = 0; c < channels_; ++c)
      for (std::int64_t ky = 0; ky < g_.w[2]; ++ky)
        for (std::int64_t kx = 0; kx < g_.w[3]; ++kx)
          for (std::int64_t oy = 0; oy < g_.y[2]; ++oy) {
            const auto iy = oy * g_.strides[0] + ky * g_.dilations[0] - g_.before[0];
            for (std::int64_t ox = 0; ox < g_.y[3]; ++ox, ++at) {
              const auto ix = ox * g_.strides[1] + kx * g_.dilations[1] - g_.before[1];
              const bool is_inside = iy >= 0 && iy < g_.x[2] && ix >= 0 && ix < g_.x[3];
              visit(at, is_inside ? (c * g_.x[2] + iy) * g_.x[3] + ix : -1);
            }
          }
  }
  void unfold(const double* x) {
    each([&](std::int64_t column, std::int64_t at) { columns_[static_cast<std::size_t>(column)] = at < 0 ? 0 : x[at]; });
  }
  void fold(double* x) const {
    each([&](std::int64_t column, std::int64_t at) {
      if (at >= 0) x[at] += columns_[static_cast<std::size_t>(column)];
    });
  }

  geometry g_;
  std::int64_t channels_, rows_, places_;
  std::vector<double> columns_;
  gemm_scratch scratch_;
};

// --- kernels ---

// conv2d (x, w), conv2d_input_grad (dy, w), conv2d_weights_grad (dy, x).
template <part Part>
class convolution final : public kernel {
 public:
  explicit convolution(const attributes& attrs) {
    g_.strides = pair_of(attrs, "strides", 1);
    g_.before = pair_of(attrs, "before", 0);
    g_.after = pair_of(attrs, "after", 0);
    g_.dilations = pair_of(attrs, "dilations", 1);
    g_.groups = attrs.integer("groups", 1);
  }

  result<void> prepare(std::span<const tensor_spec> inputs, std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(name, inputs, 2, outputs, 1); !ok) return ok;
    const auto type = outputs[0].type;
    for (const auto& s : {inputs[0], inputs[1], outputs[0]})
      if (s.shape.rank() != 4 || s.type != type || (type != dtype::f32 && type != dtype::f64)) return unfit(name, "takes f32 or f64 of rank 4", inputs);
    const auto& [x, w, y] = Part == part::output           ? std::tuple(inputs[0], inputs[1], outputs[0])
                            : Part == part::input_gradient ? std::tuple(outputs[0], inputs[1], inputs[0])
                                                           : std::tuple(inputs[1], outputs[0], inputs[0]);
    const auto sizes = [](const tensor_spec& s) { return std::array{s.shape.size(0), s.shape.size(1), s.shape.size(2), s.shape.size(3)}; };
    g_.x = sizes(x), g_.w = sizes(w), g_.y = sizes(y);
    if (auto ok = check(inputs); !ok) return ok;
    dnnl_.reset();
    columns_.reset();
    if (g_.is_empty()) return {};
    if (type == dtype::f64) {
      columns_ = std::make_unique<columns_convolution>(g_);
      return {};
    }
    set_up_kernel_thread();
    try {
      dnnl_ = std::make_unique<dnnl_convolution>(g_, Part);
    } catch (const dnnl::error& e) {
      return error(error_code::failed, fmt::format("{} of {} and {}: oneDNN cannot do it: {}", name, to_string(inputs[0]), to_string(inputs[1]), e.what()));
    }
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    auto& out = outputs[0];
    if (g_.is_empty()) {  // a sum of nothing
      std::fill(out.bytes().begin(), out.bytes().end(), std::byte{});
      return {};
    }
    if (columns_) {
      const auto* first = inputs[0].data<double>();
      const auto* second = inputs[1].data<double>();
      if constexpr (Part == part::output) return columns_->run(Part, first, second, nullptr, out.data<double>());
      if constexpr (Part == part::input_gradient) return columns_->run(Part, nullptr, second, first, out.data<double>());
      if constexpr (Part == part::weights_gradient) return columns_->run(Part, second, nullptr, first, out.data<double>());
    }
    set_up_kernel_thread();
    const auto* first = inputs[0].bytes().data();
    const auto* second = inputs[1].bytes().data();
    try {
      dnnl_->run({const_cast<std::byte*>(first), const_cast<std::byte*>(second), out.bytes().data()});
    } catch (const dnnl::error& e) {
      return error(error_code::failed, fmt::format("{}: oneDNN failed: {}", name, e.what()));
    }
    return {};
  }

 private:
  static constexpr std::string_view name = Part == part::output ? "conv2d" : Part == part::input_gradient ? "conv2d_input_grad" : "conv2d_weights_grad";

  // What the loops rely on.
  result<void> check(std::span<const tensor_spec> inputs) const {
    if (g_.groups < 1 || g_.x[0] != g_.y[0] || g_.w[0] != g_.y[1] || g_.w[0] % g_.groups != 0 || g_.w[1] * g_.groups != g_.x[1])
      return unfit(name, "channels, groups or batches differ", inputs);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto reach = (g_.w[i + 2] - 1) * g_.dilations[i] + 1, room = g_.x[i + 2] + g_.before[i] + g_.after[i] - reach;
      if (g_.strides[i] < 1 || g_.dilations[i] < 1 || g_.before[i] < 0 || g_.after[i] < 0) return unfit(name, "a stride or dilation below 1, or a padding below 0", inputs);
      if (g_.w[i + 2] > 0 && (room < 0 ? 0 : room / g_.strides[i] + 1) != g_.y[i + 2]) return unfit(name, "sizes of the result differ", inputs);
    }
    return {};
  }

  geometry g_;
  std::unique_ptr<dnnl_convolution> dnnl_;
  std::unique_ptr<columns_convolution> columns_;
};

}  // namespace

void add_convolution_kernels(kernel_table& table) {
  table.add("conv2d", row_of<convolution<part::output>>());
  table.add("conv2d_input_grad", row_of<convolution<part::input_gradient>>());
  table.add("conv2d_weights_grad", row_of<convolution<part::weights_gradient>>());
}

}  // namespace troupe::host
