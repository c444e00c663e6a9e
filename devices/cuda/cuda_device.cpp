#include "troupe/devices/cuda/cuda_device.hpp"

#include "troupe/devices/cuda/chip_memory.hpp"
#include "troupe/devices/cuda/code/elements.hpp"
#include "troupe/devices/cuda/cuda_error.hpp"
#include "troupe/devices/cuda/host_calls.hpp"
#include "troupe/devices/cuda/stream_record.hpp"
#include "troupe/devices/memory/caching_allocator.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::cuda {
namespace {

using lock = std::lock_guard<std::mutex>;

std::string_view name_of(stream_kind k) noexcept {
  switch (k) {
    case stream_kind::compute: return "compute";
    case stream_kind::copy_in: return "copy_in";
    case stream_kind::copy_out: return "copy_out";
    case stream_kind::collective: return "collective";
  }
  return "stream";
}

// --- the device ---

class device_of_chip;

struct graph_of_runtime final : captured_step {
  ~graph_of_runtime() override {
    if (runnable != nullptr) (void)cudaGraphExecDestroy(runnable);
  }
  std::size_t nodes() const noexcept override { return count; }
  cudaGraphExec_t runnable = nullptr;
  std::size_t count = 0;
};

class stream_of_runtime final : public cuda_stream {
 public:
  stream_of_runtime(device_of_chip& d, stream_kind kind, std::shared_ptr<stream_record> record)
      : device_(d), kind_(kind), record_(std::move(record)) {}
  ~stream_of_runtime() override;
  result<void> start(bool marks_each_op);

  stream_kind kind() const noexcept override { return kind_; }
  const std::string& name() const noexcept override { return record_->name; }
  void* native() const noexcept override { return stream_; }

  result<void> enqueue(std::string_view op, const touched&,
                       std::function<result<void>()> run) override;
  result<void> enqueue_launched_later(std::string_view op, const touched& what,
                                      std::function<result<void>()> run) override;
  result<void> copy(std::string_view op, std::span<std::byte> to, memory_kind to_kind,
                    std::span<const std::byte> from, memory_kind from_kind) override;
  result<void> fill_zero(std::string_view op, std::span<std::byte> to) override;
  result<void> wait(const device_event& e) override;
  result<device_event> record() override;
  result<void> call_host(std::function<void()> fn) override;
  result<device_memory> allocate(std::size_t bytes, std::string_view for_whom) override;
  void free(device_memory m) noexcept override;
  result<void> failed() const override { return record_->state(); }
  bool has_failed_with_chip() const noexcept override {
    return record_->has_failed.load(std::memory_order_acquire) &&
           record_->is_of_chip.load(std::memory_order_relaxed);
  }
  result<void> synchronize() override;

  launch_site site(std::string_view op, std::byte* workspace, const tag& t) override;
  result<void> set_draw(std::uint64_t step) override;
  result<void> begin_capture() override;
  result<std::unique_ptr<captured_step>> end_capture() override;
  result<void> replay(std::string_view op, const captured_step& step) override;

  void trace(std::shared_ptr<slice_sink> to) override;
  void label(const slice_label& whose) override { label_ = whose; }
  void collect() override;

 private:
  // Work between two points of the stream.
  struct traced_work {
    std::shared_ptr<slice_sink> sink;
    device_slice slice;  // but for its times
    std::shared_ptr<timed_event> begin, end;
    std::int64_t enqueued_ns = 0;
  };
  // Before and after a piece of work is enqueued; without a sink nothing is done.
  std::optional<traced_work> begin_slice(std::string_view op, slice_kind kind,
                                         std::uint64_t amount);
  void end_slice(std::optional<traced_work>& work);
  // Calls `run`, which launches.
  result<void> launch(const std::function<result<void>()>& run);
  // What was launched later has been: its slice ends here, and so says its mark.
  result<void> close_launch();
  // Ready for a call of `op`: not failed, and the chip is the thread's.
  result<void> begin(std::string_view op);
  // The chip is the thread's. The driver may tell here what work before has met: then the stream
  // has failed.
  result<void> on_chip();
  // A call's status: a failure of the stream if it is one of the chip, or of work before.
  result<void> done(int status, std::string_view call, std::string_view op);
  result<void> leave_mark();
  result<void> stage_in(std::string_view op, std::span<std::byte> to,
                        std::span<const std::byte> from);
  result<void> stage_out(std::string_view op, std::span<std::byte> to,
                         std::span<const std::byte> from);
  result<void> call(std::function<void()> fn);
  result<std::shared_ptr<event_state>> record_state();
  error while_captured(std::string_view what) const {
    return {error_code::usage,
            fmt::format("{}: {} cannot be part of a captured step", record_->name, what)};
  }
  call_site where(std::string_view op) const { return {record_->name, op}; }

  device_of_chip& device_;
  stream_kind kind_;
  std::shared_ptr<stream_record> record_;
  std::shared_ptr<event_pool> events_ = std::make_shared<event_pool>();
  cudaStream_t stream_ = nullptr;
  std::uint64_t recorded_ = 0;     // events so far
  std::uint64_t* draw_ = nullptr;  // on the chip
  device_memory control_;          // pinned: the fault and the mark
  bool is_captured_ = false;
  std::vector<device_memory> freed_in_capture_;
  std::shared_ptr<slice_sink> sink_;  // null: nobody traces it
  slice_label label_;
  std::shared_ptr<event_pool> times_;      // once it was traced
  time_base base_;                         // not long ago
  std::deque<traced_work> traced_;         // under way, or not looked at since
  std::optional<traced_work> open_slice_;  // of what is launched later
  bool has_open_launch_ = false;
  CUresult (*write_value_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int) = nullptr;
};

class device_of_chip final : public cuda_device {
 public:
  device_of_chip(std::string name, std::shared_ptr<cuda_chip> c, const device_options& options)
      : name_(std::move(name)),
        chip_(std::move(c)),
        options_(options),
        pinned_(name_),
        segments_(chip_),
        memory_(segments_, name_, options.limit_bytes) {}
  ~device_of_chip() override {
    (void)chip_->make_current();
    if (time_stream_ != nullptr) (void)cudaStreamDestroy(time_stream_);
  }

  const std::string& name() const noexcept override { return name_; }
  const std::string& hardware() const noexcept override { return chip_->hardware().name; }
  cuda_chip& chip() noexcept override { return *chip_; }
  result<std::unique_ptr<device_stream>> make_stream(stream_kind kind) override {
    auto made = make_cuda_stream(kind);
    if (!made) return std::move(made.error());
    return std::unique_ptr<device_stream>(std::move(*made));
  }
  result<std::unique_ptr<cuda_stream>> make_cuda_stream(stream_kind kind) override {
    if (auto ok = chip_->make_current(); !ok) return std::move(ok.error());
    auto record = std::make_shared<stream_record>();
    const auto number = streams_.fetch_add(1);
    record->name = fmt::format("{}/{}{}", name_, name_of(kind),
                               number == 0 ? std::string() : fmt::format(".{}", number));
    auto made = std::make_unique<stream_of_runtime>(*this, kind, std::move(record));
    if (auto ok = made->start(options_.marks_each_op); !ok) return std::move(ok.error());
    return std::unique_ptr<cuda_stream>(std::move(made));
  }
  result<device_memory> allocate_pinned(std::size_t bytes) override {
    if (auto ok = chip_->make_current(); !ok) return std::move(ok.error());
    return pinned_.take(bytes);
  }
  void free_pinned(device_memory m) noexcept override { pinned_.give(m); }
  memory_stats memory() const override {
    const lock l(mutex_);
    auto s = memory_.stats();
    s.pinned_bytes = pinned_.held_bytes();
    s.staged_copies = staged_copies_.load(std::memory_order_relaxed);
    s.staged_bytes = staged_bytes_.load(std::memory_order_relaxed);
    return s;
  }
  void trim() noexcept override {
    (void)chip_->make_current();
    pinned_.trim();
    const lock l(mutex_);
    memory_.trim();
  }
  bool can_reach(const device& other) const noexcept override {
    const auto* o = dynamic_cast<const device_of_chip*>(&other);
    if (o == nullptr) return false;
    const int here = chip_->hardware().index, there = o->chip_->hardware().index;
    if (here == there) return true;
    const lock l(mutex_);
    if (const auto at = peers_.find(there); at != peers_.end()) return at->second;
    int can = 0;
    bool reaches = cudaDeviceCanAccessPeer(&can, here, there) == cudaSuccess && can != 0 &&
                   chip_->make_current();
    if (reaches) {
      const auto status = cudaDeviceEnablePeerAccess(there, 0);
      // Another device of this chip was first.
      reaches = status == cudaSuccess || status == cudaErrorPeerAccessAlreadyEnabled;
    }
    (void)cudaGetLastError();
    return peers_[there] = reaches;
  }

  result<caching_allocator::allocated> allocate(const device_stream* stream, std::size_t bytes,
                                                std::string_view for_whom) {
    const lock l(mutex_);
    return memory_.allocate(bytes, stream, for_whom);
  }
  void free(const device_stream* stream, device_memory m, device_event after) {
    const lock l(mutex_);
    memory_.free(m.bytes, stream, std::move(after));
  }
  void forget(const device_stream* stream) {
    const lock l(mutex_);
    memory_.forget(stream);
  }
  pinned_memory& pinned() noexcept { return pinned_; }
  call_watch& calls() noexcept { return watch_; }
  void count_staged(std::size_t bytes) noexcept {
    staged_copies_.fetch_add(1, std::memory_order_relaxed);
    staged_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }

  // --- time (devices/device/device_trace.hpp) ---

  // From when the streams that are traced count. The first of them records it, on a stream that has
  // nothing else to do.
  time_base begin_tracing() {
    const lock l(trace_mutex_);
    if (traced_streams_++ != 0 && base_.event != nullptr) return base_;
    clock_ = {};
    base_ = {};
    if (time_stream_ == nullptr &&
        cudaStreamCreateWithFlags(&time_stream_, cudaStreamNonBlocking) != cudaSuccess) {
      (void)cudaGetLastError();
      return {};
    }
    base_.event = record_time(times_, time_stream_);
    return base_;
  }
  void end_tracing() {
    const lock l(trace_mutex_);
    --traced_streams_;
  }
  // DC-1, of a slice in the device's time: the host's.
  void to_host_time(device_slice& s, std::int64_t enqueued_ns) {
    const lock l(trace_mutex_);
    clock_.hear(s.begin_ns, enqueued_ns);
    s.begin_ns = clock_.host_ns(s.begin_ns);
    s.end_ns = clock_.host_ns(s.end_ns);
  }

 private:
  std::string name_;
  std::shared_ptr<cuda_chip> chip_;
  device_options options_;
  std::atomic<int> streams_{0};
  mutable std::mutex mutex_;
  mutable std::unordered_map<int, bool> peers_;  // by chip
  pinned_memory pinned_;
  std::atomic<std::uint64_t> staged_copies_{0}, staged_bytes_{0};
  chip_memory segments_;
  caching_allocator memory_;  // under the mutex
  std::mutex trace_mutex_;    // of what follows
  std::size_t traced_streams_ = 0;
  cudaStream_t time_stream_ = nullptr;
  std::shared_ptr<event_pool> times_ = std::make_shared<event_pool>(cudaEventDefault);
  time_base base_;
  device_clock clock_;
  call_watch watch_{*chip_};
};

// --- streams ---

result<void> stream_of_runtime::start(bool marks_each_op) {
  if (auto ok = check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                      "cudaStreamCreateWithFlags", where({}));
      !ok)
    return ok;
  constexpr std::size_t control_bytes = 256, mark_at = 128;
  static_assert(sizeof(code::fault) <= mark_at);
  auto control = device_.pinned().take(control_bytes);
  if (!control) return std::move(control.error());
  control_ = *control;
  std::memset(control_.bytes, 0, control_bytes);
  // Page-locked memory has one address for both.
  record_->faults = reinterpret_cast<code::fault*>(control_.bytes);
  void* draw = nullptr;
  if (auto ok = check(cudaMalloc(&draw, sizeof(std::uint64_t)), "cudaMalloc", where({})); !ok)
    return ok;
  draw_ = static_cast<std::uint64_t*>(draw);
  if (!marks_each_op) return {};
  // A function of the driver, which the program does not link.
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  constexpr unsigned int version = 12000;
  if (cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &found, version, cudaEnableDefault,
                                       &answer) == cudaSuccess &&
      answer == cudaDriverEntryPointSuccess) {
    std::memcpy(&write_value_, &found, sizeof found);
    record_->mark = reinterpret_cast<std::uint32_t*>(control_.bytes + mark_at);
  } else {
    (void)cudaGetLastError();
  }
  return {};
}

stream_of_runtime::~stream_of_runtime() {
  (void)device_.chip().make_current();
  stream_of_runtime::trace(nullptr);
  device_.forget(this);
  if (stream_ != nullptr) {
    (void)cudaStreamSynchronize(stream_);  // the end: nothing of it may use what goes now
    (void)cudaStreamDestroy(stream_);
  }
  if (draw_ != nullptr) (void)cudaFree(draw_);
  record_->look_for_faults();
  {
    const lock l(record_->mutex);
    record_->faults = nullptr;
    record_->mark = nullptr;
  }
  if (control_) device_.pinned().give(control_);
}

result<void> stream_of_runtime::begin(std::string_view op) {
  if (auto ok = record_->state(); !ok) return ok;
  if (auto ok = on_chip(); !ok) return ok;
  if (auto ok = close_launch(); !ok) return ok;
  const lock l(record_->mutex);
  record_->ops.begin(op);
  return {};
}

result<void> stream_of_runtime::on_chip() {
  auto ok = device_.chip().make_current();
  if (ok) return ok;
  const auto status = cudaPeekAtLastError();
  if (!is_lasting(status)) return ok;
  record_->fail_at_some_op(status, "cudaSetDevice");
  return record_->state();
}

result<void> stream_of_runtime::done(int status, std::string_view call, std::string_view op) {
  if (status == cudaSuccess) return {};
  if (is_lasting(status)) {
    record_->fail_at_some_op(status, call);
    return record_->state();
  }
  auto ok = check(status, call, where(op));
  if (is_captured_) return ok;  // nothing of it has run: the stream goes on without the capture
  record_->fail(ok.error());
  return record_->state();
}

result<void> stream_of_runtime::leave_mark() {
  if (write_value_ == nullptr || is_captured_) return {};
  std::uint64_t place = 0;
  {
    const lock l(record_->mutex);
    place = record_->ops.last();
  }
  const auto at = reinterpret_cast<CUdeviceptr>(record_->mark);
  const auto status = write_value_(stream_, at, static_cast<cuuint32_t>(place), 0);
  if (status == CUDA_SUCCESS) return {};
  write_value_ = nullptr;  // it was only to name ops better
  return {};
}

result<void> stream_of_runtime::enqueue(std::string_view op, const touched&,
                                        std::function<result<void>()> run) {
  if (auto ok = begin(op); !ok) return ok;
  auto traced = begin_slice(op, slice_kind::kernel, 0);
  if (auto ok = launch(run); !ok) return ok;
  end_slice(traced);
  return leave_mark();
}

result<void> stream_of_runtime::enqueue_launched_later(std::string_view op, const touched&,
                                                       std::function<result<void>()> run) {
  if (auto ok = begin(op); !ok) return ok;
  auto traced = begin_slice(op, slice_kind::kernel, 0);
  if (auto ok = launch(run); !ok) return ok;
  open_slice_ = std::move(traced);
  has_open_launch_ = true;
  return {};
}

result<void> stream_of_runtime::close_launch() {
  if (!std::exchange(has_open_launch_, false)) [[likely]]
    return {};
  end_slice(open_slice_);
  open_slice_.reset();
  return leave_mark();
}

result<void> stream_of_runtime::launch(const std::function<result<void>()>& run) {
  auto ok = run();
  if (ok) return ok;
  // NVIDIA's libraries have runtimes of their own, whose errors this one does not know: the stream
  // has them all.
  auto status = cudaPeekAtLastError();
  if (!is_lasting(status) && !is_captured_) {
    status = cudaStreamQuery(stream_);
    if (!is_lasting(status)) (void)cudaGetLastError();
  }
  if (is_lasting(status))
    record_->fail_at_some_op(status, "its launch");
  else if (is_captured_)
    return ok;  // what cannot be captured is enqueued as it is by whoever asked
  else
    record_->fail(ok.error());
  return record_->state();
}

result<void> stream_of_runtime::copy(std::string_view op, std::span<std::byte> to,
                                     memory_kind to_kind, std::span<const std::byte> from,
                                     memory_kind from_kind) {
  expects(to.size() == from.size(), "a copy has one size");
  if (to.empty()) return record_->state();
  const bool is_staged = to_kind == memory_kind::pageable || from_kind == memory_kind::pageable;
  if (is_captured_ && is_staged) return while_captured("a copy from or to pageable memory");
  if (auto ok = begin(op); !ok) return ok;
  if (to_kind == memory_kind::pageable && from_kind != memory_kind::device)
    return error(
        error_code::usage,
        fmt::format("{}: op {}: a device does not copy from host to host", record_->name, op));
  if (from_kind == memory_kind::pageable) return stage_in(op, to, from);
  if (to_kind == memory_kind::pageable) return stage_out(op, to, from);
  auto traced = begin_slice(op, slice_kind::copy, to.size());
  if (auto ok = done(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDefault, stream_),
                     "cudaMemcpyAsync", op);
      !ok)
    return ok;
  end_slice(traced);
  return leave_mark();
}

result<void> stream_of_runtime::stage_in(std::string_view op, std::span<std::byte> to,
                                         std::span<const std::byte> from) {
  device_.count_staged(from.size());
  auto staging = device_.pinned().take(from.size());
  if (!staging) return std::move(staging.error());
  std::memcpy(staging->bytes, from.data(), from.size());
  auto traced = begin_slice(op, slice_kind::copy, to.size());
  if (auto ok =
          done(cudaMemcpyAsync(to.data(), staging->bytes, to.size(), cudaMemcpyDefault, stream_),
               "cudaMemcpyAsync", op);
      !ok)
    return device_.pinned().give(*staging), std::move(ok);
  end_slice(traced);
  return call([pool = &device_.pinned(), m = *staging] { pool->give(m); });
}

result<void> stream_of_runtime::stage_out(std::string_view op, std::span<std::byte> to,
                                          std::span<const std::byte> from) {
  device_.count_staged(from.size());
  auto staging = device_.pinned().take(from.size());
  if (!staging) return std::move(staging.error());
  auto traced = begin_slice(op, slice_kind::copy, from.size());
  if (auto ok = done(
          cudaMemcpyAsync(staging->bytes, from.data(), from.size(), cudaMemcpyDefault, stream_),
          "cudaMemcpyAsync", op);
      !ok)
    return device_.pinned().give(*staging), std::move(ok);
  end_slice(traced);
  return call([pool = &device_.pinned(), m = *staging, to] {
    std::memcpy(to.data(), m.bytes, to.size());
    pool->give(m);
  });
}

result<void> stream_of_runtime::fill_zero(std::string_view op, std::span<std::byte> to) {
  if (auto ok = begin(op); !ok) return ok;
  if (to.empty()) return {};
  auto traced = begin_slice(op, slice_kind::kernel, 0);
  if (auto ok = done(cudaMemsetAsync(to.data(), 0, to.size(), stream_), "cudaMemsetAsync", op); !ok)
    return ok;
  end_slice(traced);
  return leave_mark();
}

result<void> stream_of_runtime::wait(const device_event& e) {
  if (auto ok = record_->state(); !ok) return ok;
  const auto* state = static_cast<const event_state*>(e.get());
  if (state == nullptr || state->stream == this || state->is_known.load(std::memory_order_acquire))
    return {};
  if (is_captured_)
    return state->is_done() ? result<void>() : while_captured("waiting for an event from outside");
  if (auto ok = on_chip(); !ok) return ok;
  return done(cudaStreamWaitEvent(stream_, state->event, 0), "cudaStreamWaitEvent", {});
}

result<std::shared_ptr<event_state>> stream_of_runtime::record_state() {
  auto e = events_->take(where({}));
  if (!e) return std::move(e.error());
  auto state = std::make_shared<event_state>();
  state->pool = events_;
  state->of = record_;
  state->event = *e;
  state->stream = this;
  {
    const lock l(record_->mutex);
    state->place = record_->ops.last();
  }
  state->number = ++recorded_;
  if (auto ok = done(cudaEventRecord(*e, stream_), "cudaEventRecord", {}); !ok)
    return std::move(ok.error());
  return state;
}

result<device_event> stream_of_runtime::record() {
  if (auto ok = record_->state(); !ok) return std::move(ok.error());
  if (is_captured_) return while_captured("an event that others see");
  if (auto ok = on_chip(); !ok) return std::move(ok.error());
  if (auto ok = close_launch(); !ok) return std::move(ok.error());
  auto state = record_state();
  if (!state) return std::move(state.error());
  return device_event(std::move(*state));
}

result<void> stream_of_runtime::call_host(std::function<void()> fn) {
  if (is_captured_) return while_captured("a call of the host");
  (void)device_.chip().make_current();
  // Also after a failure (DV-5): behind what still runs, or at once where the chip takes no calls
  // any more.
  (void)call(std::move(fn));
  return {};
}

result<void> stream_of_runtime::call(std::function<void()> fn) {
  auto c = std::make_shared<host_call>();
  c->fn = std::move(fn);
  c->of = record_;
  c->since = std::chrono::steady_clock::now();
  auto behind = record_state();
  if (!behind) {
    c->run();
    return std::move(behind.error());
  }
  auto held = std::make_unique<std::shared_ptr<host_call>>(c);
  if (auto ok =
          done(cudaLaunchHostFunc(stream_, call_from_driver, held.get()), "cudaLaunchHostFunc", {});
      !ok) {
    c->run();
    return ok;
  }
  // call_from_driver has it; after a failure that never comes, and these few bytes stay.
  (void)held.release();
  device_.calls().add(std::move(c), std::move(*behind));
  return {};
}

result<device_memory> stream_of_runtime::allocate(std::size_t bytes, std::string_view for_whom) {
  if (is_captured_) return while_captured("allocating memory");
  if (auto ok = record_->state(); !ok) return std::move(ok.error());
  if (auto ok = on_chip(); !ok) return std::move(ok.error());
  auto taken = device_.allocate(this, std::max<std::size_t>(bytes, 1), for_whom);
  if (!taken) return std::move(taken.error());
  const device_memory m{taken->bytes, bytes};
  if (auto waited = wait(taken->after); !waited) {
    // This stream has failed meanwhile. Nobody has used it since it was taken.
    device_.free(this, m, std::move(taken->after));
    return std::move(waited.error());
  }
  return m;
}

void stream_of_runtime::free(device_memory m) noexcept {
  if (is_captured_) {  // no event can be recorded now
    freed_in_capture_.push_back(m);
    return;
  }
  if (!m) return;
  // Also after a failure of an op, since others may still run; where the chip itself has failed
  // nothing does.
  device_event after;
  if (device_.chip().make_current())
    if (auto state = record_state()) after = device_event(std::move(*state));
  device_.free(this, m, std::move(after));
}

result<void> stream_of_runtime::synchronize() {
  if (is_captured_) return while_captured("waiting for the stream");
  (void)device_.chip().make_current();  // what has failed before, the next call says
  const auto status = cudaStreamSynchronize(stream_);
  if (status == cudaSuccess) {
    const lock l(record_->mutex);
    record_->ops.done(record_->ops.last());
  } else {
    record_->fail_at_some_op(status, "cudaStreamSynchronize");
  }
  return record_->state();
}

launch_site stream_of_runtime::site(std::string_view op, std::byte* workspace, const tag& t) {
  launch_site s;
  s.on = {stream_, device_.chip().multiprocessors()};
  s.device = record_->name;
  s.op = op;
  s.workspace = workspace;
  s.t = t;
  s.draw_at = is_captured_ ? draw_ : nullptr;
  s.faults = record_->faults;
  const lock l(record_->mutex);
  const auto [at, is_new] =
      record_->number_of.try_emplace(op, static_cast<unsigned int>(record_->names.size()));
  if (is_new) record_->names.push_back(op);
  s.op_number = at->second;
  return s;
}

result<void> stream_of_runtime::set_draw(std::uint64_t step) {
  constexpr std::string_view op = "the step's number";
  if (is_captured_) return while_captured("setting the step's number");
  if (auto ok = begin(op); !ok) return ok;
  // A kernel that carries the number: a copy of 8 bytes from the host would need page-locked memory
  // that lives as long.
  return done(code::launch_elements({stream_, device_.chip().multiprocessors()},
                                    code::fill<std::uint64_t>{draw_, step}, 1),
              "the launch of its kernel", op);
}

result<void> stream_of_runtime::begin_capture() {
  if (is_captured_) return while_captured("another capture");
  if (auto ok = record_->state(); !ok) return ok;
  if (auto ok = on_chip(); !ok) return ok;
  // Relaxed: this thread and others go on asking events of other streams meanwhile; what cannot be
  // captured is refused above.
  if (auto ok = done(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
                     "cudaStreamBeginCapture", {});
      !ok)
    return ok;
  is_captured_ = true;
  return {};
}

result<std::unique_ptr<captured_step>> stream_of_runtime::end_capture() {
  expects(is_captured_, "a capture was begun");
  is_captured_ = false;
  if (auto ok = on_chip(); !ok) return std::move(ok.error());
  struct give_back {
    stream_of_runtime& s;
    ~give_back() {
      for (auto m : std::exchange(s.freed_in_capture_, {})) s.free(m);
    }
  } after{*this};
  cudaGraph_t graph = nullptr;
  if (auto ok = check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture", where({}));
      !ok)
    return std::move(ok.error());
  struct at_end {
    cudaGraph_t g;
    ~at_end() { (void)cudaGraphDestroy(g); }
  } destroyer{graph};
  auto made = std::make_unique<graph_of_runtime>();
  if (auto ok =
          check(cudaGraphGetNodes(graph, nullptr, &made->count), "cudaGraphGetNodes", where({}));
      !ok)
    return std::move(ok.error());
  if (auto ok =
          check(cudaGraphInstantiate(&made->runnable, graph, 0), "cudaGraphInstantiate", where({}));
      !ok)
    return std::move(ok.error());
  return std::unique_ptr<captured_step>(std::move(made));
}

result<void> stream_of_runtime::replay(std::string_view op, const captured_step& step) {
  if (is_captured_) return while_captured("a replay");
  if (auto ok = begin(op); !ok) return ok;
  auto traced = begin_slice(op, slice_kind::replay, step.nodes());
  if (auto ok = done(cudaGraphLaunch(static_cast<const graph_of_runtime&>(step).runnable, stream_),
                     "cudaGraphLaunch", op);
      !ok)
    return ok;
  end_slice(traced);
  return leave_mark();
}

// --- what ran, and when ---

void stream_of_runtime::trace(std::shared_ptr<slice_sink> to) {
  if ((sink_ != nullptr) == (to != nullptr)) {
    sink_ = std::move(to);
    return;
  }
  sink_ = std::move(to);
  if (sink_ == nullptr) return device_.end_tracing();
  if (times_ == nullptr) times_ = std::make_shared<event_pool>(cudaEventDefault);
  // Where the chip has failed there is no base, and nothing is traced.
  (void)device_.chip().make_current();
  base_ = device_.begin_tracing();
}

std::optional<stream_of_runtime::traced_work> stream_of_runtime::begin_slice(std::string_view op,
                                                                             slice_kind kind,
                                                                             std::uint64_t amount) {
  if (sink_ == nullptr) [[likely]]
    return std::nullopt;
  if (is_captured_ || base_.event == nullptr) return std::nullopt;
  traced_work w{sink_, {kind, label_, op, amount}, nullptr, nullptr, sink_->now_ns()};
  w.begin = record_time(times_, stream_);
  if (w.begin == nullptr) return std::nullopt;
  return w;
}

void stream_of_runtime::end_slice(std::optional<traced_work>& work) {
  if (!work) [[likely]]
    return;
  work->end = record_time(times_, stream_);
  if (work->end != nullptr) traced_.push_back(std::move(*work));
}

void stream_of_runtime::collect() {
  // A time is a float of milliseconds: from a base a second ago it has 60 ns.
  constexpr std::int64_t base_max_ns = 1'000'000'000;
  if (traced_.empty()) return;
  if (!device_.chip().make_current() || record_->has_failed.load(std::memory_order_acquire))
    return traced_.clear();
  while (!traced_.empty()) {
    auto& w = traced_.front();
    if (const auto status = cudaEventQuery(w.end->get()); status != cudaSuccess) {
      // What failed shows where it is asked for.
      if (status != cudaErrorNotReady) return traced_.clear();
      (void)cudaGetLastError();
      return;
    }
    const auto begin = base_.of(*w.begin), end = base_.of(*w.end);
    if (!begin || !end) return;
    w.slice.begin_ns = *begin;
    w.slice.end_ns = std::max(*begin, *end);
    if (*end - base_.ns > base_max_ns) base_ = {w.end, *end};
    device_.to_host_time(w.slice, w.enqueued_ns);
    w.sink->add(w.slice);
    traced_.pop_front();
  }
}

}  // namespace

result<std::unique_ptr<cuda_device>> cuda_device::make(std::string name,
                                                       std::shared_ptr<cuda_chip> c,
                                                       const device_options& options) {
  if (auto ok = c->make_current(); !ok) return std::move(ok.error());
  return std::unique_ptr<cuda_device>(
      std::make_unique<device_of_chip>(std::move(name), std::move(c), options));
}

result<std::vector<std::unique_ptr<cuda_device>>> make_cuda_devices(int each,
                                                                    const device_options& options,
                                                                    const chip_options& of_chips) {
  expects(each >= 1, "a chip has at least one device");
  const auto chips = find_chips();
  if (!chips) return chips.error();
  std::vector<std::unique_ptr<cuda_device>> all;
  for (const auto& c : *chips) {
    std::shared_ptr<cuda_chip> shared;
    for (int i = 0; i < each; ++i) {
      auto name = fmt::format("gpu:{}", all.size());
      if (shared == nullptr) {
        auto made = cuda_chip::make(name, c.index, of_chips);
        if (!made) return std::move(made.error());
        shared = std::move(*made);
      }
      auto own = options;
      if (own.limit_bytes == 0)
        own.limit_bytes = c.memory_bytes / 10 * 9 / static_cast<std::uint64_t>(each);
      auto made = cuda_device::make(std::move(name), shared, own);
      if (!made) return std::move(made.error());
      all.push_back(std::move(*made));
    }
  }
  return all;
}

}  // namespace troupe::cuda
