#include "troupe/devices/async_host/async_host_chip.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <thread>

namespace troupe {

namespace {

class heap_memory final : public system_memory {
 public:
  // AH-8.
  static constexpr int unwritten = 0xa5;
  explicit heap_memory(std::uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
  std::byte* reserve(std::size_t bytes) override {
    const std::lock_guard hold(lock_);
    if (capacity_bytes_ != 0 && bytes > capacity_bytes_ - reserved_bytes_) return nullptr;
    auto* p = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{512}, std::nothrow));
    if (p == nullptr) return p;
    reserved_bytes_ += bytes;
    std::memset(p, unwritten, bytes);
    return p;
  }
  void release(std::byte* p, std::size_t bytes) noexcept override {
    const std::lock_guard hold(lock_);
    ::operator delete(p, std::align_val_t{512});
    reserved_bytes_ -= bytes;
  }

 private:
  std::mutex lock_;
  std::uint64_t capacity_bytes_, reserved_bytes_ = 0;
};

struct host_event final : device_event::state {
  bool is_done() const noexcept override {
    if (!done.load(std::memory_order_acquire)) return false;
    if (checker != nullptr) checker->host_learned(this);
    return true;
  }
  std::atomic<bool> done{false};
  order_checker* checker = nullptr;
};

// The states of a stream's events. A handle that is dropped brings its state back; it is used again
// once it is done (AH-3).
class event_pool : public std::enable_shared_from_this<event_pool> {
 public:
  std::shared_ptr<host_event> take() {
    const std::lock_guard hold(lock_);
    std::unique_ptr<host_event> e;
    const auto done = std::find_if(back_.begin(), back_.end(), [](const auto& b) {
      return b->done.load(std::memory_order_acquire);
    });
    if (done != back_.end()) {
      e = std::move(*done);
      back_.erase(done);
      e->done.store(false, std::memory_order_relaxed);
    } else {
      e = std::make_unique<host_event>();
    }
    return {e.release(), [pool = shared_from_this()](host_event* dropped) { pool->put(dropped); }};
  }

 private:
  void put(host_event* e) {
    const std::lock_guard hold(lock_);
    back_.emplace_back(e);
  }
  std::mutex lock_;
  std::vector<std::unique_ptr<host_event>> back_;
};

struct piece {
  enum class kind : std::uint8_t { work, wait, record, host } what;
  std::string_view op;
  std::function<result<void>()> run;  // work
  std::shared_ptr<const device_event::state> held;
  const host_event* awaited = nullptr;  // wait
  host_event* event = nullptr;          // record
  std::function<void()> call;           // host
  order_checker::clock moment;
  std::shared_ptr<slice_sink> sink{};  // of work that is traced
  device_slice slice{};                // likewise: but for its times
};

class stream_of_chip;

}  // namespace

struct async_host_chip::shared {
  explicit shared(const async_host_options& o)
      : options(o), memory(o.memory_bytes), random(o.seed) {}

  bool may_run(const stream_of_chip& s) const;
  bool step();
  // The piece that `s` runs next, out of the queue. Under the lock.
  void run(stream_of_chip& s, std::unique_lock<std::mutex>& hold);
  std::uint64_t below(std::uint64_t n) { return random() % n; }
  // AH-7.
  std::int64_t begin_ns(const piece& p) const {
    return options.threaded ? p.sink->now_ns() : static_cast<std::int64_t>(steps - 1) * step_ns;
  }
  std::int64_t end_ns(const piece& p) const {
    return options.threaded ? p.sink->now_ns() : static_cast<std::int64_t>(steps) * step_ns;
  }
  void delay(std::unique_lock<std::mutex>& hold) {
    if (!options.threaded || options.delay_max_us == 0 || below(4) != 0) return;
    const auto us = below(options.delay_max_us);
    hold.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    hold.lock();
  }

  static constexpr std::int64_t step_ns = 1000;
  const async_host_options options;
  heap_memory memory;
  std::mutex lock;                  // of queues, events and chance; work runs without it
  std::condition_variable changed;  // a piece came, or an event is done
  std::mt19937_64 random;
  std::vector<stream_of_chip*> streams;
  std::uint64_t steps = 0;
  std::uint64_t fails_in = 0;  // 0: nothing fails
};

namespace {

class async_host_device;

class stream_of_chip final : public async_host_stream {
 public:
  stream_of_chip(async_host_device& owner, std::shared_ptr<async_host_chip::shared> chip,
                 stream_kind kind, std::string name);
  ~stream_of_chip() override;

  stream_kind kind() const noexcept override { return kind_; }
  const std::string& name() const noexcept override { return name_; }
  result<void> enqueue(std::string_view op, const touched& what,
                       std::function<result<void>()> run) override {
    if (auto f = failed(); !f) return f;
    if (captured_ != nullptr) {
      captured_->parts.push_back({op,
                                  {what.reads.begin(), what.reads.end()},
                                  {what.writes.begin(), what.writes.end()},
                                  std::move(run)});
      return {};
    }
    if (auto* c = checker()) c->work(number_, op, what);
    push_work(op, std::move(run), slice_kind::kernel, 0);
    return {};
  }
  result<void> copy(std::string_view op, std::span<std::byte> to, memory_kind to_kind,
                    std::span<const std::byte> from, memory_kind from_kind) override {
    if (to.size() != from.size())
      return error(error_code::failed, name_ + ": '" + std::string(op) + "' copies " +
                                           std::to_string(from.size()) + " bytes to " +
                                           std::to_string(to.size()));
    auto run = [to, from]() -> result<void> {
      if (!to.empty()) std::memmove(to.data(), from.data(), to.size());
      return {};
    };
    if (captured_ != nullptr) return enqueue(op, {{&from, 1}, {&to, 1}}, std::move(run));
    if (auto f = failed(); !f) return f;
    if (auto* c = checker()) c->work(number_, op, {{&from, 1}, {&to, 1}});
    // Which another device would have to do.
    if (to_kind == memory_kind::pageable || from_kind == memory_kind::pageable)
      count_staged(to.size());
    push_work(op, std::move(run), slice_kind::copy, to.size());
    return {};
  }
  result<void> fill_zero(std::string_view op, std::span<std::byte> to) override {
    return enqueue(op, {{}, {&to, 1}}, [to]() -> result<void> {
      if (!to.empty()) std::memset(to.data(), 0, to.size());
      return {};
    });
  }
  result<void> wait(const device_event& e) override {
    if (auto f = failed(); !f) return f;
    if (!e || e.stream() == this) return {};
    const auto* state = dynamic_cast<const host_event*>(e.get());
    if (state == nullptr)
      return error(error_code::failed, name_ + ": cannot wait for an event of another backend");
    if (captured_ != nullptr)
      return state->is_done() ? result<void>()
                              : while_captured("waiting for an event from outside");
    if (auto* c = checker()) c->waits(number_, state);
    if (state->done.load(std::memory_order_acquire)) return {};
    push({.what = piece::kind::wait,
          .op = {},
          .run = {},
          .held = e.shared(),
          .awaited = state,
          .call = {},
          .moment = {}});
    return {};
  }
  result<device_event> record() override {
    if (captured_ != nullptr) return while_captured("an event that others see");
    if (auto f = failed(); !f) return std::move(f.error());
    return record_always();
  }
  // Also after a failure (DV-5).
  result<void> call_host(std::function<void()> fn) override {
    if (captured_ != nullptr) return while_captured("a call of the host");
    auto* c = checker();
    push({.what = piece::kind::host,
          .op = {},
          .run = {},
          .held = {},
          .call = std::move(fn),
          .moment = c != nullptr ? c->moment(number_) : order_checker::clock{}});
    return {};
  }
  result<device_memory> allocate(std::size_t bytes, std::string_view for_whom) override;
  void free(device_memory m) noexcept override;
  result<void> failed() const override {
    const std::lock_guard hold(chip_->lock);
    return failure_ != nullptr ? result<void>(*failure_) : result<void>();
  }
  result<void> synchronize() override;
  void* native() const noexcept override { return nullptr; }

  result<void> begin_capture() override {
    if (captured_ != nullptr) return while_captured("another capture");
    if (auto f = failed(); !f) return f;
    captured_ = std::make_shared<captured_parts>();
    return {};
  }
  result<std::unique_ptr<captured_step>> end_capture() override {
    expects(captured_ != nullptr, "a capture was begun");
    auto made = std::make_unique<captured_handle>(std::move(captured_));
    for (auto m : std::exchange(freed_in_capture_, {})) free(m);
    return std::unique_ptr<captured_step>(std::move(made));
  }
  result<void> replay(std::string_view op, const captured_step& step) override {
    if (captured_ != nullptr) return while_captured("a replay");
    if (auto f = failed(); !f) return f;
    // What is under way outlives its step's handle.
    const auto parts = dynamic_cast<const captured_handle&>(step).held;
    if (auto* c = checker())
      for (const auto& p : parts->parts) c->work(number_, p.op, {p.reads, p.writes});
    const auto run = [parts]() -> result<void> {
      for (const auto& p : parts->parts)
        if (auto ok = p.run(); !ok)
          return std::move(ok.error().while_doing("'" + std::string(p.op) + "'"));
      return {};
    };
    push_work(op, run, slice_kind::replay, parts->parts.size());
    return {};
  }
  result<void> set_draw(std::uint64_t step) override {
    if (captured_ != nullptr) return while_captured("setting the step's number");
    if (auto f = failed(); !f) return f;
    if (auto* c = checker()) c->work(number_, "the step's number", {});
    const auto run = [this, step]() -> result<void> {
      draw_ = step;
      return {};
    };
    push({.what = piece::kind::work,
          .op = "the step's number",
          .run = run,
          .held = {},
          .call = {},
          .moment = {}});
    return {};
  }
  const std::uint64_t* draw_at() const noexcept override {
    return captured_ != nullptr ? &draw_ : nullptr;
  }

  void trace(std::shared_ptr<slice_sink> to) override { sink_ = std::move(to); }
  void label(const slice_label& whose) override { label_ = whose; }
  void collect() override {
    if (!has_ran_.load(std::memory_order_acquire)) return;
    {
      const std::lock_guard hold(chip_->lock);
      has_ran_.store(false, std::memory_order_relaxed);
      collected_.swap(ran_);
    }
    for (const auto& [sink, slice] : collected_) sink->add(slice);
    collected_.clear();
  }

 private:
  friend struct async_host_chip::shared;
  order_checker* checker() const { return chip_->options.checker; }
  // `tells_host`: whether the host counts as knowing what was before once it has asked; that the
  // allocator asks teaches nobody else.
  device_event record_always(bool tells_host = true) {
    auto e = events_->take();
    e->stream = this;
    e->number = ++recorded_;
    e->checker = tells_host ? checker() : nullptr;
    if (auto* c = checker()) c->recorded(number_, e.get());
    push({.what = piece::kind::record,
          .op = {},
          .run = {},
          .held = e,
          .event = e.get(),
          .call = {},
          .moment = {}});
    return device_event(std::move(e));
  }
  void push_work(std::string_view op, std::function<result<void>()> run, slice_kind kind,
                 std::uint64_t amount) {
    piece p{.what = piece::kind::work,
            .op = op,
            .run = std::move(run),
            .held = {},
            .call = {},
            .moment = {}};
    if (sink_ != nullptr) [[unlikely]] {
      p.sink = sink_;
      p.slice = {kind, label_, op, amount};
    }
    push(std::move(p));
  }
  void push(piece p) {
    {
      const std::lock_guard hold(chip_->lock);
      queue_.push_back(std::move(p));
    }
    chip_->changed.notify_all();
  }
  struct captured_parts {
    struct part {
      std::string_view op;
      std::vector<std::span<const std::byte>> reads;
      std::vector<std::span<std::byte>> writes;
      std::function<result<void>()> run;
    };
    std::vector<part> parts;
  };
  struct captured_handle final : captured_step {
    explicit captured_handle(std::shared_ptr<const captured_parts> p) : held(std::move(p)) {}
    std::size_t nodes() const noexcept override { return held->parts.size(); }
    std::shared_ptr<const captured_parts> held;
  };
  error while_captured(std::string_view what) const {
    return {error_code::usage,
            name_ + ": " + std::string(what) + " cannot be part of a captured step"};
  }

  void count_staged(std::size_t bytes);
  void run_until_ended();
  void drain();

  async_host_device& owner_;
  std::shared_ptr<async_host_chip::shared> chip_;
  stream_kind kind_;
  std::string name_;
  std::uint32_t number_ = 0;  // of the checker's
  std::uint64_t recorded_ = 0;
  std::shared_ptr<event_pool> events_ = std::make_shared<event_pool>();
  std::shared_ptr<captured_parts> captured_;  // while it is captured
  std::vector<device_memory> freed_in_capture_;
  std::uint64_t draw_ = 0;            // of the stream's work
  std::shared_ptr<slice_sink> sink_;  // null: nobody traces it
  slice_label label_;
  using slice_of_sink = std::pair<std::shared_ptr<slice_sink>, device_slice>;
  std::vector<slice_of_sink> collected_;  // empty but in collect()
  std::atomic<bool> has_ran_{false};      // something that is traced; written under the lock
  // Under the chip's lock:
  std::deque<piece> queue_;
  bool is_running_ = false, is_ending_ = false;
  std::vector<slice_of_sink> ran_;
  std::uint32_t weight_ = 1;  // stepped: how readily it is chosen
  std::unique_ptr<error> failure_;
  std::thread thread_;
};

class async_host_device final : public device {
 public:
  async_host_device(std::shared_ptr<async_host_chip::shared> chip, std::string name,
                    std::uint64_t limit_bytes)
      : chip_(std::move(chip)), name_(std::move(name)), cache_(chip_->memory, name_, limit_bytes) {}
  const std::string& name() const noexcept override { return name_; }
  const std::string& hardware() const noexcept override { return hardware_; }
  result<std::unique_ptr<device_stream>> make_stream(stream_kind kind) override {
    const std::lock_guard hold(lock_);
    const auto earlier = made_[static_cast<std::size_t>(kind)]++;  // of this kind
    auto name = name_ + "/" + std::string(to_string(kind)) +
                (earlier != 0 ? ":" + std::to_string(earlier) : "");
    return std::unique_ptr<device_stream>(
        std::make_unique<stream_of_chip>(*this, chip_, kind, std::move(name)));
  }
  result<device_memory> allocate_pinned(std::size_t bytes) override {
    auto* p = chip_->memory.reserve(std::max<std::size_t>(bytes, 1));
    if (p == nullptr)
      return error(error_code::failed, name_ + ": no pinned memory for " + std::to_string(bytes) +
                                           " bytes. Take fewer or smaller staging buffers");
    const std::lock_guard hold(lock_);
    pinned_bytes_ += bytes;
    return device_memory{p, bytes};
  }
  void free_pinned(device_memory m) noexcept override {
    if (!m) return;
    chip_->memory.release(m.bytes, std::max<std::size_t>(m.size_bytes, 1));
    const std::lock_guard hold(lock_);
    pinned_bytes_ -= m.size_bytes;
  }
  memory_stats memory() const override {
    const std::lock_guard hold(lock_);
    auto s = cache_.stats();
    s.pinned_bytes = pinned_bytes_;
    s.staged_copies = staged_copies_, s.staged_bytes = staged_bytes_;
    return s;
  }
  void trim() noexcept override {
    const std::lock_guard hold(lock_);
    cache_.trim();
  }
  bool can_reach(const device& other) const noexcept override {
    const auto* o = dynamic_cast<const async_host_device*>(&other);
    return o != nullptr && o->chip_ == chip_;
  }

 private:
  friend class stream_of_chip;
  std::shared_ptr<async_host_chip::shared> chip_;
  std::string name_, hardware_ = "asynchronous host";
  mutable std::mutex lock_;
  caching_allocator cache_;
  std::uint64_t pinned_bytes_ = 0, staged_copies_ = 0, staged_bytes_ = 0;
  std::array<std::uint32_t, 4> made_{};  // streams, by kind
};

stream_of_chip::stream_of_chip(async_host_device& owner,
                               std::shared_ptr<async_host_chip::shared> chip, stream_kind kind,
                               std::string name)
    : owner_(owner), chip_(std::move(chip)), kind_(kind), name_(std::move(name)) {
  if (checker() != nullptr) number_ = checker()->add_stream(name_);
  {
    const std::lock_guard hold(chip_->lock);
    chip_->streams.push_back(this);
  }
  if (chip_->options.threaded) thread_ = std::thread([this] { run_until_ended(); });
}

stream_of_chip::~stream_of_chip() {
  drain();
  {
    const std::lock_guard hold(chip_->lock);
    is_ending_ = true;
    std::erase(chip_->streams, this);
  }
  chip_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard hold(owner_.lock_);
  owner_.cache_.forget(this);
}

void stream_of_chip::count_staged(std::size_t bytes) {
  const std::lock_guard hold(owner_.lock_);
  ++owner_.staged_copies_;
  owner_.staged_bytes_ += bytes;
}

// Everything that it was given has been done (AH-5).
void stream_of_chip::drain() {
  std::unique_lock hold(chip_->lock);
  if (chip_->options.threaded) {
    chip_->changed.wait(hold, [&] { return queue_.empty() && !is_running_; });
    return;
  }
  while (!queue_.empty()) {
    hold.unlock();
    expects(chip_->step(), "what a stream waits for has been enqueued before");
    hold.lock();
  }
}

void stream_of_chip::run_until_ended() {
  if (chip_->options.on_thread) chip_->options.on_thread();
  std::unique_lock hold(chip_->lock);
  for (;;) {
    chip_->changed.wait(hold, [&] { return is_ending_ || chip_->may_run(*this); });
    if (queue_.empty() && is_ending_) return;
    chip_->run(*this, hold);
  }
}

result<device_memory> stream_of_chip::allocate(std::size_t bytes, std::string_view for_whom) {
  if (captured_ != nullptr) return while_captured("allocating memory");
  if (auto f = failed(); !f) return std::move(f.error());
  std::unique_lock hold(owner_.lock_);
  auto taken = owner_.cache_.allocate(bytes, this, for_whom);
  hold.unlock();
  if (!taken) return std::move(taken.error());
  const device_memory m{taken->bytes, bytes};
  if (auto* c = checker()) c->allocated(number_, {m.bytes, caching_allocator::size_class(bytes)});
  if (auto waited = wait(taken->after); !waited) {
    // This stream has failed meanwhile. Nobody has used it since it was taken.
    if (auto* c = checker()) c->freed(number_, {m.bytes, caching_allocator::size_class(bytes)});
    hold.lock();
    owner_.cache_.free(m.bytes, this, std::move(taken->after));
    return std::move(waited.error());
  }
  return m;
}

void stream_of_chip::free(device_memory m) noexcept {
  if (!m) return;
  if (captured_ != nullptr) return freed_in_capture_.push_back(m);
  if (auto* c = checker())
    c->freed(number_, {m.bytes, caching_allocator::size_class(m.size_bytes)});
  auto moment = record_always(false);  // also after a failure
  const std::lock_guard hold(owner_.lock_);
  owner_.cache_.free(m.bytes, this, std::move(moment));
}

result<void> stream_of_chip::synchronize() {
  drain();
  if (auto* c = checker()) c->host_called(c->moment(number_));
  return failed();
}

}  // namespace

bool async_host_chip::shared::may_run(const stream_of_chip& s) const {
  if (s.queue_.empty() || s.is_running_) return false;
  const auto& next = s.queue_.front();
  return next.what != piece::kind::wait || next.awaited->done.load(std::memory_order_acquire);
}

void async_host_chip::shared::run(stream_of_chip& s, std::unique_lock<std::mutex>& hold) {
  piece p = std::move(s.queue_.front());
  s.queue_.pop_front();
  s.is_running_ = true;
  delay(hold);
  switch (p.what) {
    case piece::kind::wait: break;
    case piece::kind::record: p.event->done.store(true, std::memory_order_release); break;
    case piece::kind::host:
      hold.unlock();
      if (options.checker != nullptr) options.checker->host_called(p.moment);
      p.call();
      hold.lock();
      break;
    case piece::kind::work: {
      if (s.failure_ != nullptr) break;  // DV-5
      const bool fails = fails_in != 0 && --fails_in == 0;
      hold.unlock();
      if (p.sink != nullptr) p.slice.begin_ns = begin_ns(p);
      auto done =
          fails ? result<void>(error(error_code::failed, "a failure that was injected")) : p.run();
      if (p.sink != nullptr) p.slice.end_ns = end_ns(p);
      hold.lock();
      if (done && p.sink != nullptr) {
        s.ran_.emplace_back(p.sink, p.slice);
        s.has_ran_.store(true, std::memory_order_release);
      }
      if (!done)
        s.failure_ = std::make_unique<error>(
            std::move(done.error().while_doing(s.name_ + ": '" + std::string(p.op) + "' failed")));
      break;
    }
  }
  s.is_running_ = false;
  // What it held may be the last handle of an event, or a function's captures: both end without the
  // lock.
  hold.unlock();
  p = piece{};
  changed.notify_all();
  hold.lock();
}

bool async_host_chip::shared::step() {
  std::unique_lock hold(lock);
  // Some streams are slow for a while, and others then.
  if (steps++ % 16 == 0)
    for (auto* s : streams) s->weight_ = std::uint32_t{1} << (3 * below(4));
  std::uint64_t sum = 0;
  for (auto* s : streams) sum += may_run(*s) ? s->weight_ : 0;
  if (sum == 0) return false;
  auto at = below(sum);
  for (auto* s : streams) {
    if (!may_run(*s)) continue;
    if (at < s->weight_) {
      run(*s, hold);
      return true;
    }
    at -= s->weight_;
  }
  return false;
}

async_host_chip::async_host_chip(const async_host_options& options)
    : shared_(std::make_shared<shared>(options)) {}
async_host_chip::~async_host_chip() = default;

std::unique_ptr<device> async_host_chip::make_device(std::string name, std::uint64_t limit_bytes) {
  return std::make_unique<async_host_device>(shared_, std::move(name), limit_bytes);
}

bool async_host_chip::is_threaded() const noexcept { return shared_->options.threaded; }

bool async_host_chip::step() {
  expects(!shared_->options.threaded, "only a chip without threads is stepped");
  return shared_->step();
}

void async_host_chip::step_some() {
  for (auto n = shared_->below(2) == 0 ? 0 : shared_->below(12); n > 0 && step(); --n) {
  }
}

void async_host_chip::fail_work(std::uint64_t k) {
  const std::lock_guard hold(shared_->lock);
  shared_->fails_in = k;
}

}  // namespace troupe
