#pragma once
// Something limited that several stages use: connections to a database, a GPU, licences.
//
//   resource<connection> db(3, [](std::uint32_t i) { return connect(i); }, "db");
//   const auto ask = [](int id, connection& c) { return c.fetch(id); };
//   const auto keep = [](row r, connection& c) { c.store(r); };
//   auto rows = map(ids, with(db, ask), {.replicas = 8});
//   for_each(rows, with(db, keep));
//
// A function of with() is called with a unit of the resource besides the item, has it for that call
// alone, and waits where all are lent: so its stage has a thread of its own, as one with `.blocks`.
// Its waits are not busy time: reports count them as blocked, and `troupe why` says who has the
// resource. Units are made when the first topology that uses them begins, in its thread; a `make`
// that returns an error, or throws, is told before anything runs. A unit that a function has
// broken, it mends (`c = connect(...)`): the next one gets what is there.
//
// RES-1  A unit is with one call at a time; who has waited longest gets the next one.
// RES-2  Nobody waits for anything of the topology while he has one: a function returns before its
//        items leave. So no order of stages, and no full edge, can make a deadlock of it;
//        generators are refused for that reason.
//
// Ownership: topologies share it with the program; its units go with the last one of both.
// Threading: with() and topologies, from any thread.

#include "troupe/runtime/flow/function_stage.hpp"
#include "troupe/runtime/flow/lender.hpp"
#include "troupe/schema/error.hpp"

#include <fmt/format.h>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

template <class T>
class resource {
 public:
  using unit_type = T;
  // `make(i)`: unit i, or a result of that.
  template <class Make>
    requires std::invocable<Make&, std::uint32_t>
  resource(std::uint32_t units, Make make, std::string name = "resource")
      : shared_(std::make_shared<shared>(
            std::move(name), units,
            [make = std::move(make)](std::uint32_t i) mutable -> result<T> { return make(i); })) {}

  const std::string& name() const noexcept { return shared_->who_has.name(); }
  std::uint32_t units() const noexcept { return shared_->who_has.units(); }
  // Now, by functions of with().
  std::uint32_t lent() const noexcept { return shared_->who_has.lent(); }

  // Makes the units, unless they are there. Errors: usage: there are to be none; those of `make`.
  result<void> open() const { return shared_->open(); }
  // What stages wait at, and unit i, of who has borrowed it.
  lender& who_has() const noexcept { return shared_->who_has; }
  std::shared_ptr<const lender> shared_lender() const {
    return std::shared_ptr<const lender>(shared_, &shared_->who_has);
  }
  T& unit(std::uint32_t i) const noexcept { return *shared_->all[i]; }

 private:
  struct shared {
    lender who_has;
    std::function<result<T>(std::uint32_t)> make;
    std::vector<std::optional<T>> all;
    enum : std::uint32_t { unmade, making, made };
    std::atomic<std::uint32_t> state{unmade};

    shared(std::string name, std::uint32_t units, std::function<result<T>(std::uint32_t)> f)
        : who_has(std::move(name), units), make(std::move(f)) {}

    result<void> open() {
      for (std::uint32_t now = unmade; !state.compare_exchange_strong(now, making); now = unmade) {
        if (now == made) return {};
        state.wait(making);
      }
      auto done = make_all();
      if (!done) all.clear();
      state.store(done ? made : unmade);
      state.notify_all();
      return done;
    }
    result<void> make_all() {
      const auto failed = [this](error_code code, const std::string& why) {
        return error(code, fmt::format("resource {}: {}", who_has.name(), why));
      };
      if (who_has.units() == 0) return failed(error_code::usage, "it has no units");
      for (std::uint32_t i = 0; i < who_has.units(); ++i) try {
          auto one = make(i);
          if (!one)
            return failed(one.error().code(), fmt::format("unit {}: {}", i, one.error().message()));
          all.emplace_back(std::move(*one));
        } catch (const std::exception& e) {
          return failed(error_code::failed, fmt::format("unit {}: {}", i, e.what()));
        } catch (...) {
          return failed(error_code::failed,
                        fmt::format("unit {}: it threw something that is no exception", i));
        }
      return {};
    }
  };
  std::shared_ptr<shared> shared_;
};

// F with units of R. Its members `state` and finish() are those of F.
// `Given`: what with() was given.
template <class F, class T, class Given = F>
struct borrowing : F {
  template <class... In>
  static constexpr bool keeps_nothing = std::is_invocable_v<const Given&, In..., T&>;
  resource<T> from;
  borrowing(F f, resource<T> r) : F(std::move(f)), from(std::move(r)) {}

  result<void> open() {
    if (auto ok = from.open(); !ok) return ok;
    return open_function(static_cast<F&>(*this));
  }
  lender& lends() const noexcept { return from.who_has(); }
  std::shared_ptr<const lender> shared_lender() const { return from.shared_lender(); }
  // Of who has that unit.
  template <class... In>
    requires std::invocable<F&, In..., T&>
  std::invoke_result_t<F&, In..., T&> use(std::uint32_t unit, In&&... in) {
    return F::operator()(std::forward<In>(in)..., from.unit(unit));
  }
  // What the compiler asks for its types. Stages call use().
  template <class... In>
    requires std::invocable<F&, In..., T&>
  std::invoke_result_t<F&, In..., T&> operator()(In&&... in);
  // A function that takes no unit: a lambda is a pointer to a function, too, and that one would
  // fit.
  template <class... In>
    requires(!std::invocable<F&, In..., T&>)
  void operator()(In&&... in) = delete;
  using named_by = F;  // what its stage is called by
};

// `f`: a function of items that takes a unit behind them, as T&.
template <class T, class F>
auto with(const resource<T>& r, F f) {
  static_assert(!borrows<F>, "with: a function borrows from one resource");
  if constexpr (std::is_class_v<F> && !std::is_final_v<F>) {
    return borrowing<F, T>(std::move(f), r);
  } else {
    auto call =
        [f = std::move(f)]<class... In>(In&&... in) mutable -> std::invoke_result_t<F&, In...> {
      return f(std::forward<In>(in)...);
    };
    return borrowing<decltype(call), T, F>(std::move(call), r);
  }
}

}  // namespace troupe
