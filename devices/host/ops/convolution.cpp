// Convolutions over two dimensions and their gradients. f32 by oneDNN, in tiles and in the layouts
// that it asks for; f64 as products of matrices over columns of the image, since oneDNN has none;
// f16 and bf16 are widened around it.
//
// x [n, c, h, w], w [o, c / groups, kh, kw] -> y [n, o, oh, ow].

#include "troupe/devices/host/host_device.hpp"
#include "troupe/devices/host/host_kernels.hpp"
#include "troupe/devices/host/loops/gemm.hpp"
#include "troupe/devices/host/piecewise_kernel.hpp"
#include "troupe/devices/host/widened_kernel.hpp"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <tuple>
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

std::array<std::int64_t, 2> pair_of(const attributes& attrs, std::string_view name,
                                    std::int64_t otherwise) {
  const auto all = attrs.integers(name);
  return all.size() == 2 ? std::array{all[0], all[1]} : std::array{otherwise, otherwise};
}

// --- f32 ---

// A convolution cut into tiles: of images, or for the gradient of weights of output channels. Each
// tile is a primitive of its own on a part of what the caller has, or on a copy of that part in the
// layout that oneDNN asks for; the operand that all tiles share is copied once.
class dnnl_convolution {
 public:
  // `adds_parts`: the gradient of weights is cut into images too, and the sums of all tiles added
  // up at the end.
  dnnl_convolution(const geometry& g, part p, tile_team& team, bool adds_parts)
      : engine_(dnnl::engine::kind::cpu, 0),
        team_(team),
        part_(p),
        full_(g),
        adds_parts_(adds_parts && p == part::weights_gradient) {
    const bool is_by_channels = p == part::weights_gradient && !adds_parts_;
    const double all_ns =
        gemm_ns({g.y[0] * g.y[2] * g.y[3], g.w[0], g.w[1] * g.w[2] * g.w[3]}, sizeof(float));
    constexpr std::int64_t channels_grain = 16;  // a block of oneDNN's layouts
    const auto items = is_by_channels ? (g.groups > 1 ? 1 : g.w[0]) : g.x[0];
    // Each tile of channels goes over the whole image again.
    cut_ = tile_cut::by_cost(items, all_ns / static_cast<double>(items),
                             is_by_channels ? 8 * tile_least_ns : tile_least_ns,
                             is_by_channels ? channels_grain : 1);
    adds_parts_ = adds_parts_ && cut_.tiles() > 1;
    variants_.emplace_back(*this, part_of(cut_.size(0)), nullptr);
    if (const auto last = cut_.size(cut_.tiles() - 1); last != cut_.size(0))
      variants_.emplace_back(*this, part_of(last),
                             adds_parts_ ? nullptr : &variants_.front().ports[shared_port].inside);
    if (adds_parts_) parts_.resize(cut_.tiles() * weights());
    find_shared();
    const auto workers = std::min(team_.threads(), cut_.tiles() + 1);
    desks_.reserve(workers);
    for (std::size_t w = 0; w < workers; ++w) desks_.emplace_back(engine_, variants_);
  }

  // Operands in the order of the kernel's, then what is written. `user`, which may be null: of
  // pieces (of images, not of weights).
  result<void> run(const std::array<std::byte*, 3>& data, piece_user* user) {
    if (auto ok = copy_shared(data[shared_port]); !ok) return ok;
    auto to = data;
    if (adds_parts_) to[2] = reinterpret_cast<std::byte*>(parts_.data());
    auto done = team_.run(cut_.tiles(), [&](std::size_t tile, std::size_t worker) -> result<void> {
      try {
        run_tile(to, tile, desks_[worker]);
        if (user != nullptr)
          user->finished(cut_.begin(tile) * elements_of_image(),
                         (cut_.begin(tile) + cut_.size(tile)) * elements_of_image(), worker);
        return {};
      } catch (const dnnl::error& e) {
        return error(error_code::failed, fmt::format("oneDNN failed: {}", e.what()));
      }
    });
    if (done && adds_parts_) add_parts(reinterpret_cast<float*>(data[2]));
    return done;
  }

 private:
  static constexpr auto f32 = dnnl::memory::data_type::f32;
  static constexpr std::size_t shared_port = 1;  // w; of the gradient of weights x

  // An operand of a tile: as it lies in the caller's memory, and as the primitive takes it.
  struct port {
    int argument = 0;
    dnnl::memory::desc outside, inside;
    std::int64_t step = 0;              // bytes from a tile's to the next one's, for each item
    std::int64_t per_tile = 0;          // and for the tile; both 0: all tiles have it in common
    std::optional<dnnl::reorder> copy;  // in, or (what is written) out

    bool is_shared() const noexcept { return step == 0 && per_tile == 0; }
  };
  // The primitive for tiles of one size.
  struct variant {
    // `shared`, which may be null: the layout of the shared operand.
    variant(const dnnl_convolution& c, const geometry& g, const dnnl::memory::desc* shared) {
      const dnnl::memory::dims strides(c.full_.strides.begin(), c.full_.strides.end()),
          before(c.full_.before.begin(), c.full_.before.end()),
          after(c.full_.after.begin(), c.full_.after.end());
      const dnnl::memory::dims dilations{c.full_.dilations[0] - 1, c.full_.dilations[1] - 1};
      constexpr auto direct = dnnl::algorithm::convolution_direct;
      const auto any = [](const dnnl::memory::dims& dims) {
        return dnnl::memory::desc(dims, f32, dnnl::memory::format_tag::any);
      };
      const auto any_x = c.part_ == part::weights_gradient && shared != nullptr ? *shared
                                                                                : any(dims_of(g.x)),
                 any_y = any(dims_of(g.y));
      const auto any_w =
          c.part_ != part::weights_gradient && shared != nullptr ? *shared : any(weights_of(g));
      dnnl::primitive_attr own_scratch;
      own_scratch.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      const dnnl::convolution_forward::primitive_desc forward(
          {dnnl::prop_kind::forward_training, direct, any_x, any_w, any_y, strides, dilations,
           before, after},
          own_scratch, c.engine_);
      const auto image = [](const auto& s) { return s[1] * s[2] * s[3]; };
      const auto x = strided(g.x, c.full_.x), y = strided(g.y, c.full_.y), w = dense(weights_of(g));
      switch (c.part_) {
        case part::output:
          primitive = dnnl::convolution_forward(forward);
          scratchpad = forward.scratchpad_desc();
          add(c, DNNL_ARG_SRC, x, forward.src_desc(), image(g.x), false);
          add(c, DNNL_ARG_WEIGHTS, w, forward.weights_desc(), 0, false);
          add(c, DNNL_ARG_DST, y, forward.dst_desc(), image(g.y), true);
          break;
        case part::input_gradient: {
          const dnnl::convolution_backward_data::primitive_desc d(
              {direct, any_x, any_w, any_y, strides, dilations, before, after}, own_scratch,
              c.engine_, forward);
          primitive = dnnl::convolution_backward_data(d);
          scratchpad = d.scratchpad_desc();
          add(c, DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(), image(g.y), false);
          add(c, DNNL_ARG_WEIGHTS, w, d.weights_desc(), 0, false);
          add(c, DNNL_ARG_DIFF_SRC, x, d.diff_src_desc(), image(g.x), true);
          break;
        }
        case part::weights_gradient: {
          const dnnl::convolution_backward_weights::primitive_desc d(
              {direct, any_x, any_w, any_y, strides, dilations, before, after}, own_scratch,
              c.engine_, forward);
          primitive = dnnl::convolution_backward_weights(d);
          scratchpad = d.scratchpad_desc();
          add(c, DNNL_ARG_DIFF_DST, y, d.diff_dst_desc(),
              c.adds_parts_ ? image(g.y) : g.y[2] * g.y[3], false);
          add(c, DNNL_ARG_SRC, x, d.src_desc(), c.adds_parts_ ? image(g.x) : 0, false);
          add(c, DNNL_ARG_DIFF_WEIGHTS, w, d.diff_weights_desc(), c.adds_parts_ ? 0 : image(g.w),
              true);
          if (c.adds_parts_)
            ports.back().per_tile = static_cast<std::int64_t>(c.weights() * sizeof(float));
          break;
        }
      }
    }

    void add(const dnnl_convolution& c, int argument, const dnnl::memory::desc& outside,
             const dnnl::memory::desc& inside, std::int64_t step, bool is_written) {
      port p{argument, outside, inside, step * static_cast<std::int64_t>(sizeof(float)), 0, {}};
      if (outside != inside) {
        const auto& [from, to] = is_written ? std::tie(inside, outside) : std::tie(outside, inside);
        dnnl::primitive_attr own_scratch;
        own_scratch.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        const dnnl::reorder::primitive_desc d(c.engine_, from, c.engine_, to, own_scratch);
        if (d.scratchpad_desc().get_size() != 0)
          throw dnnl::error(dnnl_unimplemented, "copying an operand takes memory of its own");
        p.copy.emplace(d);
      }
      ports.push_back(std::move(p));
    }

    static dnnl::memory::dims dims_of(const std::array<std::int64_t, 4>& s) {
      return {s.begin(), s.end()};
    }
    static dnnl::memory::dims weights_of(const geometry& g) {
      return g.groups > 1 ? dnnl::memory::dims{g.groups, g.w[0] / g.groups, g.w[1], g.w[2], g.w[3]}
                          : dims_of(g.w);
    }
    static dnnl::memory::desc dense(const dnnl::memory::dims& dims) {
      return {dims, f32,
              dims.size() == 5 ? dnnl::memory::format_tag::goihw : dnnl::memory::format_tag::oihw};
    }
    // A part of a tensor of `all`.
    static dnnl::memory::desc strided(const std::array<std::int64_t, 4>& part,
                                      const std::array<std::int64_t, 4>& all) {
      if (part == all) return {dims_of(part), f32, dnnl::memory::format_tag::nchw};
      return {dims_of(part), f32,
              dnnl::memory::dims{all[1] * all[2] * all[3], all[2] * all[3], all[3], 1}};
    }

    dnnl::primitive primitive;
    dnnl::memory::desc scratchpad;
    std::vector<port> ports;
  };
  // What a thread needs to run tiles.
  struct desk {
    desk(const dnnl::engine& engine, const std::vector<variant>& variants) : stream(engine) {
      for (const auto& v : variants) {
        auto& mine = of_variant.emplace_back();
        for (const auto& p : v.ports) {
          mine.outside.emplace_back(p.outside, engine, nullptr);
          const bool has_copy = p.copy && !p.is_shared();
          mine.inside.push_back(has_copy ? dnnl::memory(p.inside, engine)
                                         : dnnl::memory(p.inside, engine, nullptr));
          mine.arguments.emplace(p.argument, mine.inside.back());
        }
        mine.arguments.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(v.scratchpad, engine));
      }
    }

    struct memories {
      std::vector<dnnl::memory> outside, inside;  // by port
      std::unordered_map<int, dnnl::memory> arguments;
    };
    dnnl::stream stream;
    std::vector<memories> of_variant;
  };

  geometry part_of(std::int64_t items) const noexcept {
    auto g = full_;
    if (cut_.tiles() < 2) return g;
    if (part_ == part::weights_gradient && !adds_parts_)
      g.w[0] = g.y[1] = items;
    else
      g.x[0] = g.y[0] = items;
    return g;
  }

  // The copy of the shared operand: whole, or by images, on several threads.
  void find_shared() {
    const auto& p = variants_.front().ports[shared_port];
    if (!p.copy || !p.is_shared()) return;
    shared_ = dnnl::memory(p.inside, engine_);
    shared_cut_ = {1, 1};
    if (part_ == part::weights_gradient) {
      constexpr double element_ns = 0.5;
      shared_cut_ = tile_cut::by_cost(
          full_.x[0], element_ns * static_cast<double>(full_.x[1] * full_.x[2] * full_.x[3]),
          tile_least_ns);
    }
  }

  result<void> copy_shared(std::byte* data) {
    const auto& p = variants_.front().ports[shared_port];
    if (!p.copy || !p.is_shared()) return {};
    if (shared_cut_.tiles() == 1) {
      auto& d = desks_.front();
      auto& outside = d.of_variant.front().outside[shared_port];
      outside.set_data_handle(data);
      try {
        p.copy->execute(d.stream, outside, shared_);
        d.stream.wait();
      } catch (const dnnl::error& e) {
        return error(error_code::failed,
                     fmt::format("oneDNN failed to copy an operand: {}", e.what()));
      }
      return {};
    }
    return team_.run(shared_cut_.tiles(), [&](std::size_t tile, std::size_t) -> result<void> {
      try {
        auto from = p.outside, to = p.inside;
        if (shared_cut_.tiles() > 1) {
          auto dims = variant::dims_of(full_.x);
          dims[0] = shared_cut_.size(tile);
          const dnnl::memory::dims at{shared_cut_.begin(tile), 0, 0, 0};
          from = from.submemory_desc(dims, at);
          to = to.submemory_desc(dims, at);
        }
        dnnl::memory outside(from, engine_, data), inside(to, engine_, shared_.get_data_handle());
        dnnl::stream stream(engine_);
        dnnl::reorder(outside, inside).execute(stream, outside, inside);
        stream.wait();
        return {};
      } catch (const dnnl::error& e) {
        return error(error_code::failed,
                     fmt::format("oneDNN failed to copy an operand: {}", e.what()));
      }
    });
  }

  void run_tile(const std::array<std::byte*, 3>& data, std::size_t tile, desk& d) {
    const std::size_t of = variants_.size() > 1 && tile + 1 == cut_.tiles() ? 1 : 0;
    const auto& v = variants_[of];
    auto& mine = d.of_variant[of];
    for (std::size_t i = 0; i < v.ports.size(); ++i) {
      const auto& p = v.ports[i];
      auto* at = data[i] + cut_.begin(tile) * p.step + static_cast<std::int64_t>(tile) * p.per_tile;
      if (p.is_shared() && p.copy)
        mine.inside[i].set_data_handle(shared_.get_data_handle());
      else
        (p.copy ? mine.outside[i] : mine.inside[i]).set_data_handle(at);
      if (p.copy && !p.is_shared() && i + 1 < v.ports.size())
        p.copy->execute(d.stream, mine.outside[i], mine.inside[i]);
    }
    v.primitive.execute(d.stream, mine.arguments);
    if (const auto last = v.ports.size() - 1; v.ports[last].copy)
      v.ports[last].copy->execute(d.stream, mine.inside[last], mine.outside[last]);
    d.stream.wait();
  }

  std::int64_t elements_of_image() const noexcept {
    const auto& s = part_ == part::input_gradient ? full_.x : full_.y;
    return s[1] * s[2] * s[3];
  }
  std::size_t weights() const noexcept {
    return static_cast<std::size_t>(full_.w[0] * full_.w[1] * full_.w[2] * full_.w[3]);
  }

  // In the order of the tiles.
  void add_parts(float* out) const noexcept {
    std::copy_n(parts_.data(), weights(), out);
    for (std::size_t tile = 1; tile < cut_.tiles(); ++tile)
      for (std::size_t i = 0; i < weights(); ++i) out[i] += parts_[tile * weights() + i];
  }

  dnnl::engine engine_;
  tile_team& team_;
  part part_;
  geometry full_;
  bool adds_parts_;
  tile_cut cut_;                   // of images, or output channels
  std::vector<variant> variants_;  // of all tiles but the last, and of that where it is smaller
  dnnl::memory shared_;
  tile_cut shared_cut_;
  std::vector<desk> desks_;   // by worker
  std::vector<float> parts_;  // by tile
};

// --- f64 ---

// One image and group at a time: columns [c kh kw, oh ow] of what each element of y sees of x.
class columns_convolution {
 public:
  explicit columns_convolution(const geometry& g)
      : g_(g),
        channels_(g.w[1]),
        rows_(g.w[1] * g.w[2] * g.w[3]),
        places_(g.y[2] * g.y[3]),
        columns_(static_cast<std::size_t>(rows_ * places_)) {
    scratch_.reserve(std::max({rows_, places_, g.w[0]}));
  }

  result<void> run(part p, const double* x, const double* w, const double* y, double* out) {
    const auto outputs = g_.w[0] / g_.groups;
    if (p == part::input_gradient) std::fill(out, out + g_.x[0] * g_.x[1] * g_.x[2] * g_.x[3], 0.0);
    for (std::int64_t n = 0; n < g_.x[0]; ++n)
      for (std::int64_t group = 0; group < g_.groups; ++group) {
        const auto at_x = (n * g_.x[1] + group * channels_) * g_.x[2] * g_.x[3],
                   at_w = group * outputs * rows_, at_y = (n * g_.y[1] + group * outputs) * places_;
        auto ok = result<void>();
        if (p != part::input_gradient) unfold(x + at_x);
        if (p == part::output)
          ok = gemm({outputs, places_, rows_, false, false}, w + at_w, columns_.data(), out + at_y,
                    false, scratch_);
        if (p == part::weights_gradient)
          ok = gemm({outputs, rows_, places_, false, true}, y + at_y, columns_.data(), out + at_w,
                    n > 0, scratch_);
        if (p == part::input_gradient)
          ok = gemm({rows_, places_, outputs, true, false}, w + at_w, y + at_y, columns_.data(),
                    false, scratch_);
        if (!ok) return ok;
        if (p == part::input_gradient) fold(out + at_x);
      }
    return {};
  }

 private:
  // Calls visit(column, x) for every element of a column that lies inside of x, and with x < 0
  // outside.
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
    each([&](std::int64_t column, std::int64_t at) {
      columns_[static_cast<std::size_t>(column)] = at < 0 ? 0 : x[at];
    });
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
class convolution final : public piecewise_kernel {
 public:
  convolution(const attributes& attrs, host_device& device) : team_(device.team()) {
    g_.strides = pair_of(attrs, "strides", 1);
    g_.before = pair_of(attrs, "before", 0);
    g_.after = pair_of(attrs, "after", 0);
    g_.dilations = pair_of(attrs, "dilations", 1);
    g_.groups = attrs.integer("groups", 1);
    is_fast_ = attrs.integer("fast") != 0;
  }

  result<void> prepare(std::span<const tensor_spec> inputs,
                       std::span<const tensor_spec> outputs) override {
    if (auto ok = check_ports(name, inputs, 2, outputs, 1); !ok) return ok;
    const auto type = outputs[0].type;
    for (const auto& s : {inputs[0], inputs[1], outputs[0]})
      if (s.shape.rank() != 4 || s.type != type || (type != dtype::f32 && type != dtype::f64))
        return unfit(name, "takes f32 or f64 of rank 4", inputs);
    const auto& [x, w, y] = Part == part::output ? std::tuple(inputs[0], inputs[1], outputs[0])
                            : Part == part::input_gradient
                                ? std::tuple(outputs[0], inputs[1], inputs[0])
                                : std::tuple(inputs[1], outputs[0], inputs[0]);
    const auto sizes = [](const tensor_spec& s) {
      return std::array{s.shape.size(0), s.shape.size(1), s.shape.size(2), s.shape.size(3)};
    };
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
      dnnl_ = std::make_unique<dnnl_convolution>(g_, Part, team_, is_fast_);
    } catch (const dnnl::error& e) {
      return error(error_code::failed,
                   fmt::format("{} of {} and {}: oneDNN cannot do it: {}", name,
                               to_string(inputs[0]), to_string(inputs[1]), e.what()));
    }
    return {};
  }

  result<void> run(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs) override {
    return compute(inputs, outputs, nullptr);
  }

  bool makes_pieces() const noexcept override {
    return dnnl_ != nullptr && Part != part::weights_gradient;
  }

  result<void> run_by_pieces(const tag&, std::span<const tensor> inputs, std::span<tensor> outputs,
                             piece_user& user) override {
    return compute(inputs, outputs, &user);
  }

 private:
  result<void> compute(std::span<const tensor> inputs, std::span<tensor> outputs,
                       piece_user* user) {
    auto& out = outputs[0];
    if (g_.is_empty()) {  // a sum of nothing
      std::fill(out.bytes().begin(), out.bytes().end(), std::byte{});
      return {};
    }
    if (columns_) {
      const auto* first = inputs[0].data<double>();
      const auto* second = inputs[1].data<double>();
      if constexpr (Part == part::output)
        return columns_->run(Part, first, second, nullptr, out.data<double>());
      if constexpr (Part == part::input_gradient)
        return columns_->run(Part, nullptr, second, first, out.data<double>());
      if constexpr (Part == part::weights_gradient)
        return columns_->run(Part, second, nullptr, first, out.data<double>());
    }
    set_up_kernel_thread();
    const auto* first = inputs[0].bytes().data();
    const auto* second = inputs[1].bytes().data();
    if (auto ok = dnnl_->run(
            {const_cast<std::byte*>(first), const_cast<std::byte*>(second), out.bytes().data()},
            user);
        !ok)
      return std::move(ok.error()).while_doing(name);
    return {};
  }

  static constexpr std::string_view name = Part == part::output           ? "conv2d"
                                           : Part == part::input_gradient ? "conv2d_input_grad"
                                                                          : "conv2d_weights_grad";

  // What the loops rely on.
  result<void> check(std::span<const tensor_spec> inputs) const {
    if (g_.groups < 1 || g_.x[0] != g_.y[0] || g_.w[0] != g_.y[1] || g_.w[0] % g_.groups != 0 ||
        g_.w[1] * g_.groups != g_.x[1])
      return unfit(name, "channels, groups or batches differ", inputs);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto reach = (g_.w[i + 2] - 1) * g_.dilations[i] + 1,
                 room = g_.x[i + 2] + g_.before[i] + g_.after[i] - reach;
      if (g_.strides[i] < 1 || g_.dilations[i] < 1 || g_.before[i] < 0 || g_.after[i] < 0)
        return unfit(name, "a stride or dilation below 1, or a padding below 0", inputs);
      if (g_.w[i + 2] > 0 && (room < 0 ? 0 : room / g_.strides[i] + 1) != g_.y[i + 2])
        return unfit(name, "sizes of the result differ", inputs);
    }
    return {};
  }

  tile_team& team_;
  geometry g_;
  bool is_fast_ = false;
  std::unique_ptr<dnnl_convolution> dnnl_;
  std::unique_ptr<columns_convolution> columns_;
};

}  // namespace

void add_convolution_kernels(kernel_table& table) {
  table.add("conv2d", widened_row_of<convolution<part::output>>());
  table.add("conv2d_input_grad", widened_row_of<convolution<part::input_gradient>>());
  table.add("conv2d_weights_grad", widened_row_of<convolution<part::weights_gradient>>());
}

}  // namespace troupe::host
