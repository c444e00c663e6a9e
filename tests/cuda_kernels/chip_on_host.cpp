#include "tests/cuda_kernels/chip_on_host.hpp"

#include "tests/support/wait.hpp"
#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/code/launch.hpp"
#include "troupe/devices/cuda/code/rows.hpp"
#include "troupe/devices/cuda/libraries/column_product.hpp"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <numeric>
#include <thread>

namespace troupe::test {

int team_threads = 1;

}  // namespace troupe::test

namespace troupe::cuda::code {

// Threads that meet at every join and scan.
struct meeting {
  explicit meeting(int threads) : slots(static_cast<std::size_t>(threads) * 16), arrive(threads) {}
  std::vector<unsigned char> slots;
  std::barrier<> arrive;
};
struct several {
  meeting* all;
  std::int64_t own, threads;
  std::int64_t rank() const { return own; }
  std::int64_t size() const { return threads; }
  template <class T>
  void put(T x) {
    std::memcpy(all->slots.data() + own * 16, &x, sizeof x);
    all->arrive.arrive_and_wait();
  }
  template <class T>
  T get(std::int64_t i) const {
    T x;
    std::memcpy(&x, all->slots.data() + i * 16, sizeof x);
    return x;
  }
  template <class T, class Op>
  T join(T x, Op op) {
    static_assert(sizeof(T) <= 16);
    put(x);
    T sum = get<T>(0);
    for (std::int64_t i = 1; i < threads; ++i) sum = op(sum, get<T>(i));
    all->arrive.arrive_and_wait();
    return sum;
  }
  template <class T>
  T scan(T x, T& total) {
    put(x);
    T before{}, sum{};
    for (std::int64_t i = 0; i < threads; ++i) {
      if (i == own) before = sum;
      sum = sum + get<T>(i);
    }
    all->arrive.arrive_and_wait();
    total = sum;
    return before;
  }
};

template <class F>
int launch_elements(const stream_of_chip&, const F& f, std::int64_t n) {
  for (auto i = n; i-- > 0;) f(i);  // in no order that a kernel may rely on
  return 0;
}

template <class F>
int launch_teams(const stream_of_chip&, const F& f, std::int64_t teams, std::int64_t) {
  if (test::team_threads == 1) {
    alone team;
    for (auto t = teams; t-- > 0;) f(team, t);
    return 0;
  }
  meeting all(test::team_threads);
  std::vector<std::thread> threads;
  for (int own = 0; own < test::team_threads; ++own)
    threads.emplace_back([&, own] {
      several team{&all, own, test::team_threads};
      for (std::int64_t t = 0; t < teams; ++t) f(team, t);
    });
  const test::waiting_for named("the threads of a team, which meet");
  for (auto& t : threads) t.join();
  return 0;
}

}  // namespace troupe::cuda::code

#include "troupe/devices/cuda/code/plain_elements.hpp"

namespace troupe::cuda::code {

#define TROUPE_TEAMS(...) \
  template int launch_teams(const stream_of_chip&, const __VA_ARGS__&, std::int64_t, std::int64_t)
#define TROUPE_ELEMENTS(...) \
  template int launch_elements(const stream_of_chip&, const __VA_ARGS__&, std::int64_t)
#include "troupe/devices/cuda/code/elements.inc"
#include "troupe/devices/cuda/code/rows.inc"

const plain_row* find_plain(std::string_view op, std::span<const dtype> in, dtype out) {
  return find_in_plain_table(op, in, out);
}

int sort_pairs(const stream_of_chip&, const std::uint32_t* keys_in, std::uint32_t* keys_out,
               const std::uint32_t* values_in, std::uint32_t* values_out, std::int64_t n,
               int key_bits, void* workspace, std::size_t workspace_bytes) {
  std::vector<std::size_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto key_of = [&](std::size_t i) {
    return keys_in[i] & ((std::uint64_t{1} << key_bits) - 1);
  };
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return key_of(a) < key_of(b); });
  for (std::size_t i = 0; i < order.size(); ++i)
    keys_out[i] = keys_in[order[i]], values_out[i] = values_in[order[i]];
  std::memset(workspace, 0xEE, workspace_bytes);
  return 0;
}

}  // namespace troupe::cuda::code

namespace troupe::test {
namespace {

void cuda_expects(bool fits) { expects(fits, "an element lies inside of its matrix"); }

struct product_plan final : cuda::chip_services::plan {
  cuda::product p;
};
struct convolution_plan final : cuda::chip_services::plan {
  cuda::convolution c;
};

// As a library of column-major matrices would.
template <class T>
void multiply_as(const cuda::product& p, const T* a, const T* b, const T* bias, T* c) {
  const auto call = cuda::in_columns(p);
  const auto at = [](const cuda::column_matrix& m, std::int64_t batch, std::int64_t row,
                     std::int64_t column) {
    cuda_expects(row < m.rows && column < m.columns && m.stride >= m.rows);
    return batch * m.step + row + column * m.stride;
  };
  const auto inner = call.transpose_first ? call.first.rows : call.first.columns;
  for (std::int64_t batch = 0; batch < p.batches; ++batch)
    for (std::int64_t i = 0; i < call.d.rows; ++i)
      for (std::int64_t j = 0; j < call.d.columns; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < inner; ++k)
          sum += static_cast<double>(b[call.transpose_first ? at(call.first, batch, k, i)
                                                            : at(call.first, batch, i, k)]) *
                 static_cast<double>(a[call.transpose_second ? at(call.second, batch, j, k)
                                                             : at(call.second, batch, k, j)]);
        auto& to = c[at(call.d, batch, i, j)];
        sum += p.adds ? static_cast<double>(to) : 0;
        if (p.end != cuda::epilogue::none) sum += static_cast<double>(bias[i]);  // to each column
        if (p.end == cuda::epilogue::bias_relu) sum = std::max(sum, 0.0);
        if (p.end == cuda::epilogue::bias_gelu_tanh) sum = host::gelu_tanh_op::apply(sum);
        to = static_cast<T>(sum);
      }
}

template <class T>
void convolve_as(const cuda::convolution& c, T* x, T* w, T* y) {
  const auto* written = c.part == cuda::convolution_part::output           ? c.y
                        : c.part == cuda::convolution_part::input_gradient ? c.x
                                                                           : c.w;
  std::vector<double> sums(
      static_cast<std::size_t>(written[0] * written[1] * written[2] * written[3]));
  for (std::int64_t n = 0; n < c.y[0]; ++n)
    for (std::int64_t o = 0; o < c.y[1]; ++o)
      for (std::int64_t oy = 0; oy < c.y[2]; ++oy)
        for (std::int64_t ox = 0; ox < c.y[3]; ++ox)
          for (std::int64_t k = 0; k < c.w[1]; ++k)
            for (std::int64_t ky = 0; ky < c.w[2]; ++ky)
              for (std::int64_t kx = 0; kx < c.w[3]; ++kx) {
                const auto iy = oy * c.stride[0] - c.padding[0] + ky * c.dilation[0],
                           ix = ox * c.stride[1] - c.padding[1] + kx * c.dilation[1];
                if (iy < 0 || iy >= c.x[2] || ix < 0 || ix >= c.x[3]) continue;
                const auto channel = o / (c.y[1] / c.groups) * c.w[1] + k;
                const auto at_x =
                    static_cast<std::size_t>(((n * c.x[1] + channel) * c.x[2] + iy) * c.x[3] + ix);
                const auto at_w =
                    static_cast<std::size_t>(((o * c.w[1] + k) * c.w[2] + ky) * c.w[3] + kx);
                const auto at_y =
                    static_cast<std::size_t>(((n * c.y[1] + o) * c.y[2] + oy) * c.y[3] + ox);
                switch (c.part) {
                  case cuda::convolution_part::output:
                    sums[at_y] += static_cast<double>(x[at_x]) * static_cast<double>(w[at_w]);
                    break;
                  case cuda::convolution_part::input_gradient:
                    sums[at_x] += static_cast<double>(y[at_y]) * static_cast<double>(w[at_w]);
                    break;
                  case cuda::convolution_part::weights_gradient:
                    sums[at_w] += static_cast<double>(y[at_y]) * static_cast<double>(x[at_x]);
                    break;
                }
              }
  auto* to = c.part == cuda::convolution_part::output           ? y
             : c.part == cuda::convolution_part::input_gradient ? x
                                                                : w;
  for (std::size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<T>(sums[i]);
}

// Memory with a guard on both sides.
class guarded {
 public:
  explicit guarded(std::size_t bytes)
      : bytes_(bytes), all_(bytes + 2 * guard + 256, std::byte{0xA5}) {
    const auto at = reinterpret_cast<std::uintptr_t>(all_.data()) + guard;
    data_ = reinterpret_cast<std::byte*>((at + 255) / 256 * 256);
  }
  std::byte* data() { return data_; }
  bool is_whole() const {
    return std::all_of(all_.data(), static_cast<const std::byte*>(data_),
                       [](std::byte b) { return b == std::byte{0xA5}; }) &&
           std::all_of(static_cast<const std::byte*>(data_) + bytes_, all_.data() + all_.size(),
                       [](std::byte b) { return b == std::byte{0xA5}; });
  }

 private:
  static constexpr std::size_t guard = 512;
  std::size_t bytes_;
  std::vector<std::byte> all_;
  std::byte* data_;
};

}  // namespace

result<chip_on_host::plan_ref> chip_on_host::plan_product(const cuda::product& p) {
  if (!has_epilogues && p.end != cuda::epilogue::none)
    return error(error_code::failed, "no algorithm for a product with this end");
  auto made = std::make_shared<product_plan>();
  made->p = p;
  made->workspace_bytes = 100;
  return plan_ref(std::move(made));
}
result<void> chip_on_host::multiply(const cuda::launch_site&, const plan& p, const void* a,
                                    const void* b, const void* bias, void* c,
                                    std::byte* workspace) {
  const auto& q = static_cast<const product_plan&>(p);
  if (workspace != nullptr) std::memset(workspace, 0xEE, q.workspace_bytes);
  ++products;
  if (q.p.type == dtype::f32)
    multiply_as(q.p, static_cast<const float*>(a), static_cast<const float*>(b),
                static_cast<const float*>(bias), static_cast<float*>(c));
  else
    multiply_as(q.p, static_cast<const double*>(a), static_cast<const double*>(b),
                static_cast<const double*>(bias), static_cast<double*>(c));
  return {};
}
result<chip_on_host::plan_ref> chip_on_host::plan_convolution(const cuda::convolution& c) {
  auto made = std::make_shared<convolution_plan>();
  made->c = c;
  made->workspace_bytes = 300;
  return plan_ref(std::move(made));
}
result<void> chip_on_host::convolve(const cuda::launch_site&, const plan& p, void* x, void* w,
                                    void* y, std::byte* workspace) {
  const auto& q = static_cast<const convolution_plan&>(p);
  std::memset(workspace, 0xEE, q.workspace_bytes);
  if (q.c.type == dtype::f32)
    convolve_as(q.c, static_cast<float*>(x), static_cast<float*>(w), static_cast<float*>(y));
  else
    convolve_as(q.c, static_cast<double*>(x), static_cast<double*>(w), static_cast<double*>(y));
  return {};
}
result<chip_on_host::plan_ref> chip_on_host::plan_elements(const cuda::fused_source&,
                                                           std::string_view) {
  return error(error_code::not_found, "the host has no NVRTC");
}
result<void> chip_on_host::run_elements(const cuda::launch_site&, const plan&,
                                        const cuda::fused_source&,
                                        std::span<const std::byte* const>, std::byte*) {
  return error(error_code::failed, "generated kernels do not run on the host");
}
result<void> chip_on_host::copy(const cuda::launch_site&, void* to, const void* from,
                                std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}
result<std::shared_ptr<const std::byte>> chip_on_host::keep(std::span<const std::byte> bytes) {
  auto all = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  return std::shared_ptr<const std::byte>(all, all->data());
}
result<void> chip_on_host::fill_zero(const cuda::launch_site&, void* to, std::size_t bytes) {
  if (bytes > 0) std::memset(to, 0, bytes);
  return {};
}
result<void> chip_on_host::check_launch(const cuda::launch_site&, int status) {
  return status == 0 ? result<void>() : error(error_code::failed, "a launch failed");
}
std::size_t chip_on_host::sort_workspace_bytes(std::int64_t n) {
  return static_cast<std::size_t>(n) + 40;
}

result<std::vector<tensor>> run_cuda_kernel(const op_case& c, chip_on_host& chip,
                                            cuda::code::fault* faults) {
  static const auto table = cuda::make_cuda_kernels();
  auto made = table.make(c.op, c.attrs, chip);
  if (!made) return std::move(made.error());
  std::vector<tensor_spec> specs;
  for (const auto& t : c.inputs) specs.push_back(t.spec());
  if (auto ok = (*made)->prepare(specs, c.outputs); !ok) return std::move(ok.error());
  guarded workspace((*made)->workspace_bytes());
  std::vector<guarded> out;
  std::vector<std::byte*> out_at;
  std::vector<const std::byte*> in_at;
  for (const auto& s : c.outputs) out.emplace_back(s.size_bytes());
  for (auto& o : out) out_at.push_back(o.data());
  for (const auto& t : c.inputs) in_at.push_back(t.bytes().data());
  cuda::code::fault unseen;
  cuda::launch_site at;
  at.device = "host";
  at.op = c.op;
  at.op_number = 9;
  at.workspace = workspace.data();
  at.t.step = c.step;
  at.faults = faults != nullptr ? faults : &unseen;
  if (auto ok = (*made)->enqueue(at, in_at, out_at); !ok) return std::move(ok.error());
  if (!workspace.is_whole())
    return error(error_code::failed, c.name() + " wrote beyond its workspace");
  std::vector<tensor> results;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].is_whole()) return error(error_code::failed, c.name() + " wrote beyond a result");
    auto t = tensor::make(c.outputs[i]);
    std::memcpy(t.bytes().data(), out[i].data(), t.size_bytes());
    results.push_back(std::move(t));
  }
  if (unseen.state != 0)
    return error(error_code::failed,
                 fmt::format("{} reported {} at {}", c.name(), unseen.value, unseen.at));
  return results;
}

}  // namespace troupe::test
