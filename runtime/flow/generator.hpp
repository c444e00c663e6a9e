#pragma once
// A function that makes several items, one after the other:
//
//   generator<std::string> words(std::string line) {
//     std::size_t at = 0;
//     while (auto end = line.find(' ', at); at < line.size()) {
//       co_yield line.substr(at, end - at);
//       at = end == std::string::npos ? line.size() : end + 1;
//     }
//   }
//
// A stage goes on with it only while there is room for what it makes, so a generator without an end
// takes no memory. Parameters are kept in the coroutine: take them by value.
//
// GCC 12 destroys twice what is made of braces within a co_yield and owns memory, and says nothing:
// make it before, and yield that (`co_yield moved(one)` where it is not needed any more). Where it
// is the item itself, the compiler says so here.
//
// Threading: one owner; it may move between threads while it is not running.
// Errors: what it throws comes out of next().

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace troupe {

// What a co_yield may move from.
template <class T>
struct moved_value {
  T& value;
};
template <class T>
moved_value<T> moved(T& value) noexcept {
  return {value};
}

template <class T>
class [[nodiscard]] generator {
 public:
  struct promise_type {
    std::optional<T> value;
    std::exception_ptr failure;

    generator get_return_object() {
      return generator(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(moved_value<T> v) {
      value.emplace(std::move(v.value));
      return {};
    }
    template <class U>
    std::suspend_always yield_value(U&& v) {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14
      static_assert(std::is_lvalue_reference_v<U> || !std::is_aggregate_v<T> ||
                        std::is_trivially_destructible_v<T>,
                    "GCC 12 destroys an aggregate that a co_yield makes twice: put it into a "
                    "variable, and yield moved(variable)");
#endif
      value.emplace(std::forward<U>(v));
      return {};
    }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { failure = std::current_exception(); }
  };
  using value_type = T;

  generator() noexcept = default;
  generator(generator&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  generator& operator=(generator&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }
  ~generator() {
    if (handle_) handle_.destroy();
  }

  // The next item; nullopt: the end.
  std::optional<T> next() {
    if (!handle_ || handle_.done()) return std::nullopt;
    auto& promise = handle_.promise();
    promise.value.reset();
    handle_.resume();
    if (promise.failure) std::rethrow_exception(std::exchange(promise.failure, nullptr));
    if (handle_.done()) return std::nullopt;
    return std::move(promise.value);
  }

 private:
  explicit generator(std::coroutine_handle<promise_type> h) noexcept : handle_(h) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace troupe
