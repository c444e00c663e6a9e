#pragma once
// How a function becomes a stage. What it returns is the contract:
//
//   a value            one item comes of each
//   optional<T>        one or none: it filters
//   generator<T>       any number
//   result<T>          one, or an error, with which the stage's policy deals
//   result<optional<T>>, result<generator<T>>   likewise
//   void, result<void> it is a sink (for_each)
//
// State is what a struct with operator() has; every replica has an instance of its own, copied from
// the one that was given. Where all that it learns from items is its member `state`, of a type that
// goes over a wire (value_codec.hpp), it survives the node that it runs on. A member finish(), of
// the same contract or void, is called once, at the end of the stream; so a stage whose operator()
// returns void and whose finish() returns what it has gathered reduces a flow. A member open() is
// called before the first item, where the stage runs: what it returns as an error, such as a file
// that is missing, is told before anything runs.

#include "troupe/runtime/flow/function_id.hpp"
#include "troupe/runtime/flow/generator.hpp"
#include "troupe/runtime/flow/lender.hpp"
#include "troupe/runtime/flow/stage.hpp"

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace troupe {

// What a function's result says of its items. `item`: their type; void where there are none.
template <class R>
struct returned {
  using item = R;
  static constexpr bool is_one = true, is_generator = false, may_fail = false;
};
template <>
struct returned<void> {
  using item = void;
  static constexpr bool is_one = false, is_generator = false, may_fail = false;
};
template <class T>
struct returned<std::optional<T>> {
  using item = T;
  static constexpr bool is_one = false, is_generator = false, may_fail = false;
};
template <class T>
struct returned<generator<T>> {
  using item = T;
  static constexpr bool is_one = false, is_generator = true, may_fail = false;
};
template <class R>
struct returned<result<R>> {
  using item = typename returned<R>::item;
  static constexpr bool is_one = returned<R>::is_one, is_generator = returned<R>::is_generator,
                        may_fail = true;
};

template <class F, class... In>
using returned_by = returned<std::remove_cvref_t<std::invoke_result_t<F&, In...>>>;

// A member open(), which returns nothing or a result<void>: called once, in the process where the
// function runs, before its first item.
template <class F>
concept has_open = requires(F& f) { f.open(); };
template <class F>
result<void> open_function([[maybe_unused]] F& f) {
  if constexpr (has_open<F>) {
    if constexpr (std::is_void_v<decltype(f.open())>)
      f.open();
    else
      return f.open();
  }
  return {};
}

// It is called with a unit of a resource (resource.hpp).
template <class F>
concept borrows = requires(F& f) {
  { f.lends() } -> std::same_as<lender&>;
};
// Null: it borrows nothing.
template <class F>
std::shared_ptr<const lender> lender_of([[maybe_unused]] const F& f) {
  if constexpr (borrows<F>)
    return f.shared_lender();
  else
    return nullptr;
}
// For as long as a call takes.
class borrowed_unit {
 public:
  borrowed_unit(lender& from, stage_output& out) : from_(from), number_(out.borrow(from)) {}
  borrowed_unit(const borrowed_unit&) = delete;
  borrowed_unit& operator=(const borrowed_unit&) = delete;
  ~borrowed_unit() { from_.give_back(number_); }
  std::uint32_t number() const noexcept { return number_; }

 private:
  lender& from_;
  std::uint32_t number_;
};
template <class F, class... In>
auto called(F& f, [[maybe_unused]] stage_output& out, In&&... in) {
  if constexpr (borrows<F>) {
    const borrowed_unit unit(f.lends(), out);
    return f.use(unit.number(), std::forward<In>(in)...);
  } else {
    return f(std::forward<In>(in)...);
  }
}

// Members of a function with `state`, for checkpoints of the topology. keep() is called before its
// `state` is written: what that speaks of has to be durable then, such as the first so many bytes
// of a file. reopen() is called after open(), when `state` is what it was: what came later is
// undone.
template <class F>
concept has_keep = requires(F& f) {
  { f.keep() } -> std::same_as<result<void>>;
};
template <class F>
concept has_reopen = requires(F& f) {
  { f.reopen() } -> std::same_as<result<void>>;
};
template <class F>
result<tensor> kept_by(F& f, const stage& s) {
  if constexpr (has_keep<F>)
    if (auto ok = f.keep(); !ok) return std::move(ok.error());
  return s.save().value_or(tensor{});
}
template <class F>
result<void> reopened(F& f, stage& s, const tensor& kept) {
  if (kept && !s.load(kept)) return error(error_code::failed, "it was kept with another state");
  if constexpr (has_reopen<F>)
    return f.reopen();
  else
    return {};
}

template <class F>
concept has_finish = requires(F& f) { f.finish(); };

// The items of a stage: those of its function, or, of one that returns nothing, those of its
// finish(); void where neither makes any.
template <class F, class In>
struct stage_items {
  using type = typename returned_by<F, In>::item;
};
template <class F, class In>
  requires(std::is_void_v<std::invoke_result_t<F&, In>> && has_finish<F>)
struct stage_items<F, In> {
  using type = typename returned<std::remove_cvref_t<decltype(std::declval<F&>().finish())>>::item;
};

// Puts what `r` has into output 0. True: `left` has more.
template <class R, class T>
bool put_returned(R&& r, generator<T>& left, stage_output& out) {
  using D = std::remove_cvref_t<R>;
  if constexpr (returned<D>::may_fail) {
    if (!r) {
      out.fail(std::move(r.error()));
      return false;
    }
    if constexpr (std::is_same_v<D, result<void>>)
      return false;
    else
      return put_returned(std::move(*r), left, out);
  } else if constexpr (returned<D>::is_generator) {
    left = std::move(r);
    return true;
  } else if constexpr (is_optional<D>::value) {
    if (r) out.put_last(0, any_value(std::move(*r)));
    return false;
  } else {
    out.put_last(0, any_value(std::forward<R>(r)));
    return false;
  }
}
// The next one of `left`. False: there is none.
template <class T>
bool put_next(generator<T>& left, stage_output& out) {
  auto next = left.next();
  if (!next) {
    left = {};
    return false;
  }
  out.put(0, any_value(std::move(*next)));
  return true;
}

template <class F, class In>
class function_stage final : public stage {
  using made = typename stage_items<F, In>::type;
  using item_type = std::conditional_t<std::is_void_v<made>, int, made>;

 public:
  explicit function_stage(F f) : f_(std::move(f)) {}

  result<void> open() override { return open_function(f_); }
  bool take(std::uint32_t, any_value&& in, stage_output& out) override {
    auto& value = in.get<In>();
    if constexpr (std::is_void_v<std::invoke_result_t<F&, In>>) {
      called(f_, out, std::move(value));
      return false;
    } else {
      return put_returned(called(f_, out, std::move(value)), left_, out);
    }
  }
  bool go_on(stage_output& out) override { return put_next(left_, out); }
  bool end(std::uint32_t, stage_output& out) override {
    if constexpr (has_finish<F>) {
      if constexpr (std::is_void_v<decltype(f_.finish())>)
        f_.finish();
      else
        return put_returned(f_.finish(), left_, out);
    }
    return false;
  }
  std::optional<tensor> save() const override { return saved_state(f_); }
  bool load(const tensor& saved) override { return load_state(f_, saved); }
  result<tensor> keep(const item_types&) override { return kept_by(f_, *this); }
  result<void> reopen(const tensor& kept, const item_types&) override {
    return reopened(f_, *this, kept);
  }

 private:
  F f_;
  generator<item_type> left_;
};

// A source: a function that gives the next item, nothing at the end (optional<T>, result of that),
// or a generator.
template <class F>
class source_stage final : public stage {
 public:
  explicit source_stage(F f) : f_(std::move(f)) {}
  result<void> open() override { return open_function(f_); }
  source_state produce(stage_output& out) override {
    if constexpr (requires { typename F::promise_type; }) {
      auto next = f_.next();
      if (!next) return source_state::over;
      out.put(0, any_value(std::move(*next)));
    } else {
      auto next = called(f_, out);
      if constexpr (returned<std::remove_cvref_t<decltype(next)>>::may_fail) {
        if (!next) {
          out.fail(std::move(next.error()));
          return source_state::more;
        }
        if (!*next) return source_state::over;
        out.put(0, any_value(std::move(**next)));
      } else {
        if (!next) return source_state::over;
        out.put(0, any_value(std::move(*next)));
      }
    }
    return source_state::more;
  }
  bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }
  std::optional<tensor> save() const override { return saved_state(f_); }
  bool load(const tensor& saved) override { return load_state(f_, saved); }
  result<tensor> keep(const item_types&) override { return kept_by(f_, *this); }
  result<void> reopen(const tensor& kept, const item_types&) override {
    return reopened(f_, *this, kept);
  }

 private:
  F f_;
};

// Makes a stage of a function each time that one is needed: of a copy, or, where it cannot be
// copied, of itself, once.
template <class Stage, class F>
std::function<std::unique_ptr<stage>()> stage_maker(F f) {
  if constexpr (std::is_copy_constructible_v<F>) {
    return [f = std::move(f)] { return std::unique_ptr<stage>(std::make_unique<Stage>(f)); };
  } else {
    auto kept = std::make_shared<std::optional<F>>(std::move(f));
    return [kept]() -> std::unique_ptr<stage> {
      if (!*kept) throw std::runtime_error("the stage's function cannot be copied");
      auto s = std::make_unique<Stage>(std::move(**kept));
      kept->reset();
      return s;
    };
  }
}

}  // namespace troupe
