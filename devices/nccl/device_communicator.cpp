#include "troupe/devices/nccl/device_communicator.hpp"

#include "troupe/devices/nccl/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::nccl {

namespace {

using namespace std::chrono_literals;

// NCCL tells nobody: a launch is settled after some 10 us, a beginning after milliseconds, and what
// fails later may do so at any time.
constexpr auto first_pause = 20us, longest_pause = 1'000us, pause_when_settled = 50'000us;

class communicator_on_device final : public device_communicator {
 public:
  communicator_on_device(std::unique_ptr<communicator> c, communicator_changed changed)
      : inner_(std::move(c)), changed_(std::move(changed)), watch_([this] { look(); }) {}
  ~communicator_on_device() override {
    {
      const std::lock_guard hold(lock_);
      is_ending_ = true;
    }
    asked_.notify_all();
    watch_.join();
  }

  int rank() const noexcept override { return inner_->rank(); }
  int ranks() const noexcept override { return inner_->ranks(); }
  void abort() noexcept override { inner_->abort(); }
  result<bool> is_ready() override {
    auto r = inner_->is_ready();
    if (r && !*r) watch_closely();
    return r;
  }
  result<void> finish() override {
    auto ok = inner_->finish();
    if (!ok) return ok;
    is_finishing_ = true;
    watch_closely();
    return {};
  }

  result<void> all_reduce(device_stream& on, std::string_view op, std::span<const std::byte> from,
                          std::span<std::byte> to, dtype type, device_reduction how) override {
    return call(on, op, from, to, from.size() == to.size(), [&] {
      return inner_->all_reduce(on.native(), op, from.data(), to.data(),
                                from.size() / size_of(type), type, how);
    });
  }
  result<void> reduce_scatter(device_stream& on, std::string_view op,
                              std::span<const std::byte> from, std::span<std::byte> to, dtype type,
                              device_reduction how) override {
    return call(on, op, from, to, from.size() == to.size() * count(), [&] {
      return inner_->reduce_scatter(on.native(), op, from.data(), to.data(),
                                    to.size() / size_of(type), type, how);
    });
  }
  result<void> all_gather(device_stream& on, std::string_view op, std::span<const std::byte> from,
                          std::span<std::byte> to, dtype type) override {
    return call(on, op, from, to, from.size() * count() == to.size(), [&] {
      return inner_->all_gather(on.native(), op, from.data(), to.data(),
                                from.size() / size_of(type), type);
    });
  }
  result<void> broadcast(device_stream& on, std::string_view op, std::span<const std::byte> from,
                         std::span<std::byte> to, dtype type, int root) override {
    return call(on, op, from, to, from.size() == to.size(), [&] {
      return inner_->broadcast(on.native(), op, from.data(), to.data(), from.size() / size_of(type),
                               type, root);
    });
  }

 private:
  std::size_t count() const noexcept { return static_cast<std::size_t>(inner_->ranks()); }

  // On CUDA `run` is called at once.
  template <class Run>
  result<void> call(device_stream& on, std::string_view op, std::span<const std::byte> from,
                    std::span<std::byte> to, bool fits, Run&& run) {
    // the stream is none the worse.
    if (is_finishing_)
      return error(error_code::usage,
                   fmt::format("rank {} of {}: op {}: the communicator has been finished", rank(),
                               ranks(), op));
    if (!fits)
      return error(error_code::usage, fmt::format("rank {} of {}: op {}: {} bytes into {}", rank(),
                                                  ranks(), op, from.size(), to.size()));
    return on.enqueue_launched_later(op, {{&from, 1}, {&to, 1}},
                                     [&]() -> result<void> { return run(); });
  }

  void watch_closely() {
    {
      const std::lock_guard hold(lock_);
      is_awaited_ = true;
    }
    asked_.notify_all();
  }

  // DC-4.
  void look() {
    auto pause = first_pause;
    bool is_settled = false;
    for (std::unique_lock hold(lock_); !is_ending_;) {
      asked_.wait_for(hold, is_settled ? pause_when_settled : pause,
                      [&] { return is_ending_ || (is_settled && is_awaited_); });
      if (is_ending_) return;
      if (is_settled && std::exchange(is_awaited_, false)) is_settled = false, pause = first_pause;
      hold.unlock();
      const auto r = inner_->is_ready();
      if (!r) {
        changed_();
        return;
      }
      if (*r && !is_settled) changed_();
      hold.lock();
      is_settled = *r;  // who has asked meanwhile is told once more
      pause = std::min<std::chrono::microseconds>(2 * pause, longest_pause);
    }
  }

  std::unique_ptr<communicator> inner_;
  communicator_changed changed_;
  bool is_finishing_ = false;  // of the caller's thread
  std::mutex lock_;
  std::condition_variable asked_;
  bool is_awaited_ = false, is_ending_ = false;
  std::thread watch_;  // the last: it uses the others
};

}  // namespace

result<std::unique_ptr<device_communicator>> begin_on_device(const communicator_id& id, int rank,
                                                             int ranks, std::string device,
                                                             communicator_changed changed) {
  auto made = communicator::begin(id, rank, ranks, std::move(device));
  if (!made) return std::move(made.error());
  return std::unique_ptr<device_communicator>(
      std::make_unique<communicator_on_device>(std::move(*made), std::move(changed)));
}

}  // namespace troupe::nccl
