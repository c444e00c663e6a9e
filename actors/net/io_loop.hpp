#pragma once
// One thread's event loop: file descriptors (epoll), timers, and waking it up from other threads.
//
// Threading: all calls from one thread, the one that calls poll(); wake() and now_ns() from any.
//
// IO-1  After wake(), a poll() that waits returns at once, and so does the next one if none was
//       waiting. What a thread did before its wake() is seen after that poll() has returned.
// IO-2  A handler of a descriptor that was removed is not called any more, also when its event was
//       already fetched.
// IO-3  Timers fire in the order of their deadlines (equal ones in the order of their making),
//       never early.
// IO-4  Handlers may add, change and remove descriptors, timers and themselves.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace troupe {

enum class timer_id : std::uint64_t;

class io_loop {
 public:
  class fd_handler {
   public:
    virtual ~fd_handler() = default;
    virtual void on_ready(bool readable, bool writable) = 0;
  };

  io_loop();  // throws std::system_error when the process has no descriptor left
  ~io_loop();
  io_loop(const io_loop&) = delete;
  io_loop& operator=(const io_loop&) = delete;

  // Waits for events, due timers or wake(), at most `timeout_ms` (-1: without end, 0: not at all),
  // handles what is there once and returns how many handlers were called.
  int poll(int timeout_ms);
  // From any thread. Costs an atomic operation while poll() does not sleep, else one write to an
  // eventfd.
  void wake() noexcept;

  // Is told before the thread goes to sleep in poll() (true) and when it has woken up (false).
  void on_sleep(std::function<void(bool)> fn) { on_sleep_ = std::move(fn); }

  std::int64_t now_ns() const noexcept;
  timer_id after(std::int64_t delay_ns, std::function<void()> fn);
  void cancel(timer_id id);

  // Level-triggered. The handler is kept until remove().
  void add(int fd, std::shared_ptr<fd_handler> handler, bool want_read, bool want_write);
  void change(int fd, bool want_read, bool want_write);
  void remove(int fd);

  // Calls `fn` once: when the handler that runs now has returned, or at the beginning of the next
  // poll().
  void defer(std::function<void()> fn);

 private:
  struct registration {
    std::shared_ptr<fd_handler> handler;
    std::uint32_t generation = 0;
  };
  using timer_key = std::pair<std::int64_t, std::uint64_t>;  // deadline, id

  int wait_ms(int timeout_ms) const;
  int run_timers();
  void run_deferred();

  int epoll_ = -1;
  int event_ = -1;
  std::atomic<bool> woken_{false};
  std::atomic<bool> sleeps_{false};
  std::unordered_map<int, registration> fds_;
  std::uint32_t generation_ = 0;
  std::map<timer_key, std::function<void()>> timers_;
  std::unordered_map<std::uint64_t, std::int64_t> deadlines_;
  std::uint64_t timer_last_ = 0;
  std::vector<std::function<void()>> deferred_;
  std::function<void(bool)> on_sleep_;
};

}  // namespace troupe
