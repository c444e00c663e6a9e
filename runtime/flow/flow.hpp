#pragma once
// Pipelines as values: a flow<T> is what comes out of a stage, and functions of flows add stages.
//
//   topology t(argc, argv);
//   auto lines = read_lines(t, "words.txt");
//   auto words = map(lines, [](std::string line) { return split_at_spaces(std::move(line)); });
//   auto counts = partition_by(words, [](const std::string& w) { return w; }, count_words{});
//   write_csv(counts, "counts.csv");
//   return t.run();
//
// A flow that is used twice goes to both. Order is kept, unless a stage says `.order = any`. Every
// edge is bounded in bytes and items, so a slow stage holds its sources back; what may be lost is
// said (latest, drop_oldest), and counted.
//
// A stage is a function (function_stage.hpp says what it may return) or a struct with operator(),
// whose members are its state. It is called by one thread at a time, never by two at once; each of
// several replicas has an instance of its own. The name of a stage is that of its struct, or the
// line of the call, unless `.name` says another.
//
// Threading: a topology is described by one thread. Ownership: flows are names; the topology owns
// the stages, and everything that they were given.
// Errors: a stage that does not fit its flow is one of the compiler, in a few lines; what shows
// only later is said by run(), before anything runs, with the user's line.

#include "troupe/runtime/flow/flow_graph.hpp"
#include "troupe/runtime/flow/function_id.hpp"
#include "troupe/runtime/flow/function_stage.hpp"
#include "troupe/runtime/flow/keyed_stage.hpp"
#include "troupe/runtime/flow/replica_control.hpp"
#include "troupe/runtime/flow/shape_stages.hpp"
#include "troupe/runtime/flow/stage_name.hpp"
#include "troupe/runtime/flow/value_codec.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe {

// A duration, made of any of std::chrono's.
struct nanoseconds_of {
  std::int64_t ns = 0;
  constexpr nanoseconds_of() = default;
  template <class Duration>
    requires requires { typename Duration::period; }
  constexpr nanoseconds_of(Duration d)  // 5ms is one
      : ns(bounded(static_cast<long double>(d.count()) * 1'000'000'000 * Duration::period::num /
                   Duration::period::den)) {}

 private:
  // A hundred years stand for whatever is longer, so that no sum with a clock overflows.
  static constexpr std::int64_t bounded(long double n) {
    constexpr std::int64_t most = std::int64_t{100} * 366 * 24 * 3600 * 1'000'000'000;
    return n >= most ? most : n <= -most ? -most : static_cast<std::int64_t>(n);
  }
};

template <class T>
class flow {
 public:
  using item_type = T;
  flow(flow_graph& g, std::uint32_t stage, std::uint32_t port) noexcept
      : graph_(&g), stage_(stage), port_(port) {}
  flow_graph& graph() const noexcept { return *graph_; }
  std::uint32_t stage() const noexcept { return stage_; }
  std::uint32_t port() const noexcept { return port_; }

 private:
  flow_graph* graph_;
  std::uint32_t stage_, port_;
};

enum class item_order : std::uint8_t { kept, any };
inline constexpr auto kept = item_order::kept;
inline constexpr auto any = item_order::any;

struct stage_options {
  std::string name{};
  // That work at once, each with a state of its own: a number, automatic, or between(1, 8), which
  // may change while it runs (not of partition_by, whose keys have their replica).
  replica_count replicas = 1;
  // It may sleep, for a download or a database: it has a thread of its own, and each replica too.
  bool blocks = false;
  // Of what replicas make: as it came in, or as it is done.
  item_order order = kept;
  error_policy on_error{};
  // Where items that were left out are told (dead_letters()).
  std::optional<flow<dead_letter>> dead_letters{};
  // Nodes to run on: "/job:worker", "/node:n2", "/label:rack=3"; replicas are dealt among those
  // that match. The function stands in a stage library (stage_library.hpp). Without a cluster, and
  // where it is empty, it runs in the program. A stage survives its node where its operator() is
  // const, or where all that it learns is its member `state` (up to 1 GiB); else the topology ends
  // with it.
  std::string on{};
};

// --- how stages are added (of this file and of sources and sinks) --------------------------------

struct new_stage {
  const char* kind = "";
  const std::type_info* function = nullptr;
  std::function<std::unique_ptr<stage>()> make;
  std::uint32_t outputs = 1;
  stage_rate rate{};
  bool holds = false;
  bool is_copyable = true;  // its function: each replica, and who begins anew, has a copy
  // Null: it stays in the program.
  std::shared_ptr<const travelling_function> travels{};
  // Nothing comes of an item, only of the end.
  bool makes_at_end = false;
  // Null: no other function may come into its place.
  std::shared_ptr<const function_contract> contract{};
  std::shared_ptr<const lender> borrows{};
  // Why no checkpoint can have what its function keeps; null: it can.
  const char* forgets = nullptr;
  // How its items and those that it makes are written; null: they are not.
  const value_codec* takes = nullptr;
  const value_codec* makes = nullptr;
  std::string state_layout{};  // of what a checkpoint has of it
};
// Of a function of items `In`.
template <class F, class... In>
constexpr bool keeps_nothing() {
  if constexpr (has_finish<F>)
    return false;
  else if constexpr (borrows<F>)
    return F::template keeps_nothing<In...>;
  else
    return std::is_invocable_v<const F&, In...>;
}
template <class F>
inline constexpr bool has_some_state = requires { &F::state; };
template <class F, class... In>
constexpr const char* why_it_forgets() {
  if constexpr (has_state<F> || keeps_nothing<F, In...>())
    return nullptr;
  else if constexpr (has_some_state<F>)
    return "its member `state` is of a type that cannot be written: take numbers, texts, tensors, "
           "vectors, ordered maps and sets of such, or structs that list their fields";
  else
    return "its function may keep something from item to item, which only a member `state` tells; "
           "one that keeps nothing has a const operator()";
}
// Of one whose keep() and reopen() nobody calls.
template <class F, class... In>
constexpr const char* why_it_forgets_here() {
  if constexpr (has_keep<F> || has_reopen<F>)
    return "keep() and reopen() are for functions of map() and for_each()";
  else
    return why_it_forgets<F, In...>();
}
// What a checkpoint has of F, as text.
template <class F>
std::string layout_of_state() {
  if constexpr (has_state<F>)
    return layout_of<std::remove_cvref_t<decltype(F::state)>>();
  else
    return {};
}
template <class F, class T, class U>
std::shared_ptr<const function_contract> contract_of(bool makes_one, bool makes_at_end = false) {
  std::string state;
  if constexpr (has_state<F>) state = layout_of<std::remove_cvref_t<decltype(F::state)>>();
  return std::make_shared<function_contract>(
      function_contract{&typeid(T), &typeid(U), makes_one, makes_at_end, std::move(state)});
}
// What a stage is called by that the user gives no name.
template <class F>
const std::type_info* name_of_function() {
  if constexpr (borrows<F>)
    return &typeid(typename F::named_by);
  else
    return &typeid(F);
}
// A function that borrows waits for what it borrows.
template <class F, class... In>
stage_options with_its_thread(stage_options o) {
  if constexpr (borrows<F>) {
    static_assert(!returned_by<F, In...>::is_generator,
                  "with: a generator would keep its unit while others wait; return a vector, and "
                  "unbatch() it");
    o.blocks = true;
  }
  return o;
}
template <class F, class T>
inline constexpr bool makes_at_end_only = std::is_void_v<std::invoke_result_t<F&, T>>;
// Of a function that `.on` sends to a node.
template <class In, class Out, class F>
std::shared_ptr<const travelling_function> travels_for(const stage_options& o, const F& f) {
  if (o.on.empty()) return nullptr;
  return std::make_shared<travelling_function>(travels_as<In, Out>(f));
}
// Adds a stage of one input, or as many replicas of it between a deal and a gather; where what they
// make comes from. `hash`: items of one hash go to one replica.
std::uint32_t add_function(flow_graph& g, std::uint32_t from, std::uint32_t port, new_stage s,
                           const stage_options& o, const source_location& where,
                           std::function<std::uint64_t(any_value&)> hash = {});
std::uint32_t add_shape(flow_graph& g, std::vector<std::pair<std::uint32_t, std::uint32_t>> from,
                        stage_info info);
std::uint32_t add_merge(flow_graph& g, std::vector<std::pair<std::uint32_t, std::uint32_t>> from,
                        const source_location& where);
// A stage without inputs.
std::uint32_t add_source(flow_graph& g, stage_info info,
                         const std::optional<flow<dead_letter>>& letters = {});
// Notes a mistake where replicas are asked of a stage that has none.
void is_alone(flow_graph& g, std::uint32_t stage, const stage_options& o);

template <class F, class T>
inline constexpr bool takes_items = std::is_invocable_v<F&, T>;

// What comes out of F: not of interest, but still a type, where F does not take T's, so that the
// compiler says one thing and stops.
template <class F, class T, bool = takes_items<F, T>>
struct mapped {
  using item = typename stage_items<F, T>::type;
};
template <class F, class T>
struct mapped<F, T, false> {
  using item = T;
};
template <class F, class T>
using mapped_item =
    std::conditional_t<std::is_void_v<typename mapped<F, T>::item>, T, typename mapped<F, T>::item>;

// Of a function without arguments: source() takes what it returns.
template <class F>
inline constexpr bool returns_a_generator = false;
template <class F>
  requires std::is_invocable_v<F&>
inline constexpr bool returns_a_generator<F> = returned_by<F>::is_generator;

template <class F>
constexpr stage_rate rate_of_result(bool is_one) {
  return is_one && !has_finish<F> ? stage_rate{} : unknown_rate;
}

// --- sources -------------------------------------------------------------------------------------

// `f` is a generator<T>, or a function that returns optional<T> (nothing: the end) or a result of
// that. What it holds is moved into the topology.
template <class F>
auto source(flow_graph& t, F f, const stage_options& o = {},
            source_location where = source_location::current()) {
  constexpr bool fits = !returns_a_generator<F>;
  static_assert(fits, "source: the function returns a generator: give it what that returns, f()");
  if constexpr (fits) {
    stage_info info;
    info.name = o.name;
    info.is_named = !o.name.empty();
    info.kind = "source";
    info.where = where;
    info.on_error = o.on_error;
    info.may_block = o.blocks || borrows<F>;
    info.borrows = lender_of(f);
    info.has_position = has_state<F>;
    info.state_layout = layout_of_state<F>();
    info.make = stage_maker<source_stage<F>>(std::move(f));
    const auto id = add_source(t, std::move(info), o.dead_letters);
    is_alone(t, id, o);
    if constexpr (requires { typename F::promise_type; })
      return flow<typename F::value_type>(t, id, 0);
    else
      return flow<typename returned_by<F>::item>(t, id, 0);
  } else {
    return flow<typename returned_by<F>::item>(t, 0, 0);
  }
}

// The elements of a container, one after the other.
template <class Container>
auto from(flow_graph& t, Container c, const stage_options& o = {},
          source_location where = source_location::current()) {
  using T = std::remove_cvref_t<decltype(*c.begin())>;
  struct each_element {
    std::shared_ptr<Container> all;
    std::uint64_t state = 0;  // the next one
    std::optional<T> operator()() {
      if (state >= all->size()) return std::nullopt;
      return (*all)[static_cast<std::size_t>(state++)];
    }
  };
  return source(t, each_element{std::make_shared<Container>(std::move(c))}, o, where);
}
template <class T>
auto from(flow_graph& t, std::initializer_list<T> c, const stage_options& o = {},
          source_location where = source_location::current()) {
  return from(t, std::vector<T>(c), o, where);
}

// --- functions -----------------------------------------------------------------------------------

// What `f` makes of each item.
template <class T, class F>
auto map(const flow<T>& in, F f, const stage_options& o = {},
         source_location where = source_location::current()) {
  constexpr bool fits = takes_items<F, T>;
  static_assert(fits, "map: the stage does not take the items of this flow");
  using U = mapped_item<F, T>;
  if constexpr (fits) {
    using contract = returned_by<F, T>;
    constexpr bool makes = !std::is_void_v<typename stage_items<F, T>::type>;
    static_assert(makes, "map: the stage makes nothing; use for_each");
    if constexpr (makes) {
      auto travels = travels_for<T, U>(o, f);
      auto lends = lender_of(f);
      return flow<U>(
          in.graph(),
          add_function(
              in.graph(), in.stage(), in.port(),
              {"map", name_of_function<F>(), stage_maker<function_stage<F, T>>(std::move(f)), 1,
               rate_of_result<F>(contract::is_one), has_finish<F>, std::is_copy_constructible_v<F>,
               std::move(travels), makes_at_end_only<F, T>,
               contract_of<F, T, U>(rate_of_result<F>(contract::is_one).is_known,
                                    makes_at_end_only<F, T>),
               std::move(lends), why_it_forgets<F, T>(), codec_of<T>(), codec_of<U>(),
               layout_of_state<F>()},
              with_its_thread<F, T>(o), where),
          0);
    } else {
      return flow<T>(in);
    }
  } else {
    return flow<U>(in.graph(), 0, 0);
  }
}

// What filter() makes of a predicate. Of one with `state` it has that, too.
template <class F, class T>
struct filtering {
  F is_wanted;
  result<void> open() { return open_function(is_wanted); }
  std::optional<T> operator()(T value) {
    if (!is_wanted(std::as_const(value))) return std::nullopt;
    return value;
  }
};
template <class F, class T>
  requires(has_state<F> && !std::is_final_v<F> && !borrows<F>)
struct filtering<F, T> : F {
  explicit filtering(F f) : F(std::move(f)) {}
  std::optional<T> operator()(T value) {
    if (!F::operator()(std::as_const(value))) return std::nullopt;
    return value;
  }
  void finish() = delete;  // a predicate makes nothing at the end
};
template <class F, class T>
  requires borrows<F>
struct filtering<F, T> {
  F is_wanted;
  result<void> open() { return is_wanted.open(); }
  lender& lends() const noexcept { return is_wanted.lends(); }
  std::shared_ptr<const lender> shared_lender() const { return is_wanted.shared_lender(); }
  std::optional<T> use(std::uint32_t unit, T value) {
    if (!is_wanted.use(unit, std::as_const(value))) return std::nullopt;
    return value;
  }
  std::optional<T> operator()(T value);
};
template <class F, class T>
constexpr const char* why_a_filter_forgets() {
  if constexpr (has_state<filtering<F, T>>)
    return why_it_forgets<F, const T&>();
  else if constexpr (keeps_nothing<F, const T&>())
    return nullptr;
  else
    return "its predicate may keep something from item to item, which only a member `state` tells, "
           "of a struct that is not final and borrows nothing";
}
// The items that `is_wanted` says true of.
template <class T, class F>
flow<T> filter(const flow<T>& in, F is_wanted, const stage_options& o = {},
               source_location where = source_location::current()) {
  constexpr bool fits = std::is_invocable_r_v<bool, F&, const T&>;
  static_assert(fits, "filter: the function does not take an item of this flow and return bool");
  if constexpr (fits) {
    auto f = filtering<F, T>{std::move(is_wanted)};
    auto lends = lender_of(f);
    return flow<T>(in.graph(),
                   add_function(in.graph(), in.stage(), in.port(),
                                {"filter",
                                 name_of_function<F>(),
                                 stage_maker<function_stage<filtering<F, T>, T>>(std::move(f)),
                                 1,
                                 unknown_rate,
                                 false,
                                 std::is_copy_constructible_v<F>,
                                 {},
                                 false,
                                 {},
                                 std::move(lends),
                                 why_a_filter_forgets<F, T>(),
                                 codec_of<T>(),
                                 codec_of<T>(),
                                 layout_of_state<filtering<F, T>>()},
                                with_its_thread<F, const T&>(o), where),
                   0);
  }
  return in;
}

// The end of a flow: `f` is called with each item. It may return result<void>.
template <class T, class F>
void for_each(const flow<T>& in, F f, const stage_options& o = {},
              source_location where = source_location::current()) {
  constexpr bool fits = takes_items<F, T>;
  static_assert(fits, "for_each: the function does not take the items of this flow");
  if constexpr (fits) {
    auto travels = travels_for<T, void>(o, f);
    auto lends = lender_of(f);
    add_function(
        in.graph(), in.stage(), in.port(),
        {"for_each", name_of_function<F>(), stage_maker<function_stage<F, T>>(std::move(f)), 0,
         unknown_rate, has_finish<F>, std::is_copy_constructible_v<F>, std::move(travels), false,
         contract_of<F, T, void>(false), std::move(lends), why_it_forgets<F, T>(), codec_of<T>(),
         nullptr, layout_of_state<F>()},
        with_its_thread<F, T>(o), where);
  }
}

// All items, for tests and small results: filled when the topology has run.
template <class T>
std::shared_ptr<std::vector<T>> collect(const flow<T>& in, const stage_options& o = {},
                                        source_location where = source_location::current()) {
  auto all = std::make_shared<std::vector<T>>();
  const auto keep = [all](T value) { all->push_back(std::move(value)); };
  using F = std::remove_const_t<decltype(keep)>;
  auto alone = o;
  alone.replicas = 1;
  const auto id = add_function(
      in.graph(), in.stage(), in.port(),
      {"collect", &typeid(F), stage_maker<function_stage<F, T>>(keep), 0, unknown_rate}, alone,
      where);
  in.graph().stage_at(id).forgets =
      "it gathers items in the program's memory; write_csv() and others write them";
  is_alone(in.graph(), id, o);
  return all;
}

// --- shapes --------------------------------------------------------------------------------------

// Items of all flows, as they come.
template <class T>
flow<T> merge(const std::vector<flow<T>>& flows,
              source_location where = source_location::current()) {
  expects(!flows.empty(), "merge: there is a flow");
  auto& g = flows.front().graph();
  std::vector<std::pair<std::uint32_t, std::uint32_t>> from;
  for (const auto& f : flows) from.emplace_back(f.stage(), f.port());
  const auto id = add_merge(g, std::move(from), where);
  g.stage_at(id).holds_items = types_that_wait({codec_of<T>()});
  return {g, id, 0};
}
template <class T>
flow<T> merge(const flow<T>& a, const flow<T>& b,
              source_location where = source_location::current()) {
  return merge(std::vector{a, b}, where);
}
template <class T>
flow<T> merge(const flow<T>& a, const flow<T>& b, const flow<T>& c,
              source_location where = source_location::current()) {
  return merge(std::vector{a, b, c}, where);
}

template <class... Ts>
flow<std::tuple<Ts...>> zip_at(const source_location& where, const flow<Ts>&... flows) {
  flow_graph* g = nullptr;
  ((g = &flows.graph()), ...);
  stage_info info;
  info.kind = "zip";
  info.where = where;
  info.is_join = true;
  info.holds_items = {held_codec<Ts>()...};
  info.make = [] {
    return make_zip(sizeof...(Ts), [](std::vector<any_value>& v) {
      return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return any_value(std::tuple<Ts...>(std::move(v[I].template get<Ts>())...));
      }(std::index_sequence_for<Ts...>{});
    });
  };
  return {*g, add_shape(*g, {{flows.stage(), flows.port()}...}, std::move(info)), 0};
}
// The n-th items of all flows together, as a tuple; it ends with the flow that ends first. Flows
// that come of one must have as many items each: a branch that filters is refused.
template <class A, class B>
flow<std::tuple<A, B>> zip(const flow<A>& a, const flow<B>& b,
                           source_location where = source_location::current()) {
  return zip_at(where, a, b);
}
template <class A>
flow<std::tuple<A>> zip(const flow<A>& a, source_location = source_location::current()) {
  constexpr bool fits = std::is_void_v<A>;
  static_assert(fits, "zip: one flow has no partner; zip two, three or four");
  return {a.graph(), 0, 0};
}
template <class A, class B, class C>
flow<std::tuple<A, B, C>> zip(const flow<A>& a, const flow<B>& b, const flow<C>& c,
                              source_location where = source_location::current()) {
  return zip_at(where, a, b, c);
}
template <class A, class B, class C, class D>
flow<std::tuple<A, B, C, D>> zip(const flow<A>& a, const flow<B>& b, const flow<C>& c,
                                 const flow<D>& d,
                                 source_location where = source_location::current()) {
  return zip_at(where, a, b, c, d);
}

// Those that `is_first` says true of, and the others.
template <class T, class F>
std::pair<flow<T>, flow<T>> split(const flow<T>& in, F is_first, const stage_options& o = {},
                                  source_location where = source_location::current()) {
  constexpr bool fits = std::is_invocable_r_v<bool, F&, const T&>;
  static_assert(fits, "split: the function does not take an item of this flow and return bool");
  static_assert(!borrows<F>, "split: its function borrows nothing; map() before it may");
  class split_stage final : public stage {
   public:
    explicit split_stage(F f) : f_(std::move(f)) {}
    result<void> open() override { return open_function(f_); }
    std::optional<tensor> save() const override { return saved_state(f_); }
    bool load(const tensor& saved) override { return load_state(f_, saved); }
    bool take(std::uint32_t, any_value&& v, stage_output& out) override {
      if constexpr (fits) out.put(f_(std::as_const(v.get<T>())) ? 0 : 1, std::move(v));
      return false;
    }

   private:
    F f_;
  };
  auto one = o;
  one.replicas = 1;
  const auto id = add_function(
      in.graph(), in.stage(), in.port(),
      {"split", &typeid(F), stage_maker<split_stage>(std::move(is_first)), 2, unknown_rate}, one,
      where);
  if (const auto* why = why_it_forgets_here<F, const T&>()) in.graph().stage_at(id).forgets = why;
  in.graph().stage_at(id).state_layout = layout_of_state<F>();
  in.graph().stage_at(id).holds_items = types_that_wait({codec_of<T>()});
  is_alone(in.graph(), id, o);
  return {flow<T>(in.graph(), id, 0), flow<T>(in.graph(), id, 1)};
}

// `.count` of a batch: so many items, up_to(64), or automatic, which is up_to(256).
class batch_count {
 public:
  template <std::integral N>
  constexpr batch_count(N n) noexcept  // 4 is one
      : most_(std::cmp_less(n, 0) ? 0 : static_cast<std::uint64_t>(n)) {}
  // Of what says how many replicas, automatic alone is meant for batches.
  constexpr batch_count(const replica_count& c) noexcept
      : most_(c.is_automatic() ? 256 : 0), is_up_to_(c.is_automatic()) {}
  constexpr std::uint64_t most() const noexcept { return most_; }
  constexpr bool is_up_to() const noexcept { return is_up_to_; }

 private:
  friend constexpr batch_count up_to(std::uint64_t most) noexcept;
  std::uint64_t most_;
  bool is_up_to_ = false;
};
// As many as wait when the stage behind is free, at most `most`: while it is busy they gather, and
// one that comes alone waits for nobody. Of a source that always has more, all are full.
constexpr batch_count up_to(std::uint64_t most) noexcept {
  batch_count c(most);
  c.is_up_to_ = true;
  return c;
}

struct batch_options {
  batch_count count = 1;
  // A batch that is not full leaves when its first item has waited so long; none: it waits.
  nanoseconds_of within{};
  std::string name{};
};

template <class T>
value_pack packs_vector() {
  return [](std::vector<any_value>& v) {
    std::vector<T> all;
    all.reserve(v.size());
    for (auto& x : v) all.push_back(std::move(x.template get<T>()));
    return any_value(std::move(all));
  };
}

template <class T>
flow<std::vector<T>> batch(const flow<T>& in, const batch_options& o,
                           source_location where = source_location::current()) {
  stage_info info;
  info.name = o.name;
  info.kind = "batch";
  info.where = where;
  info.holds = true;
  info.holds_items = {held_codec<T>()};
  info.is_timed = o.within.ns > 0;
  info.is_last = o.count.is_up_to();
  info.rate = o.within.ns > 0 || o.count.is_up_to() ? unknown_rate : stage_rate{1, o.count.most()};
  const auto refuse = [&](const char* why) {
    in.graph().note_mistake(error(error_code::usage, why).at(where));
  };
  if (o.count.most() == 0)
    refuse("batch: .count is 0, or no number: say one, up_to(n), or automatic");
  if (o.within.ns > 0 && o.count.is_up_to())
    refuse("batch: .count = up_to(n) waits for nothing; leave .within out, or say a number");
  info.make = [=] {
    return make_batch(o.count.most(), o.within.ns, o.count.is_up_to(), packs_vector<T>());
  };
  return {in.graph(), add_shape(in.graph(), {{in.stage(), in.port()}}, std::move(info)), 0};
}

// The items of each batch, one after the other.
template <class T>
flow<T> unbatch(const flow<std::vector<T>>& in,
                source_location where = source_location::current()) {
  class unbatch_stage final : public stage {
   public:
    bool take(std::uint32_t, any_value&& v, stage_output&) override {
      all_ = std::move(v.get<std::vector<T>>());
      next_ = 0;
      return !all_.empty();
    }
    bool go_on(stage_output& out) override {
      out.put(0, any_value(std::move(all_[next_++])));
      if (next_ < all_.size()) return true;
      all_ = {};
      return false;
    }

   private:
    std::vector<T> all_;
    std::size_t next_ = 0;
  };
  stage_info info;
  info.kind = "unbatch";
  info.where = where;
  info.holds_items = types_that_wait({codec_of<std::vector<T>>()});
  info.rate = unknown_rate;
  info.make = [] { return std::unique_ptr<stage>(std::make_unique<unbatch_stage>()); };
  return {in.graph(), add_shape(in.graph(), {{in.stage(), in.port()}}, std::move(info)), 0};
}

struct window_options {
  std::uint64_t count = 0;  // items of a window, by number ...
  std::uint64_t step = 0;   // ... and between the beginnings of two; 0: as many
  nanoseconds_of every{};   // or by time: what came within so long
  std::string name{};
};

template <class T>
flow<std::vector<T>> window(const flow<T>& in, const window_options& o,
                            source_location where = source_location::current()) {
  stage_info info;
  info.name = o.name;
  info.kind = "window";
  info.where = where;
  info.holds = true;
  info.holds_items = {held_codec<T>()};
  if ((o.count == 0) == (o.every.ns == 0))
    in.graph().note_mistake(
        error(error_code::usage, "window: either .count or .every is needed").at(where));
  if (o.every.ns > 0) {
    info.is_timed = true;
    info.rate = unknown_rate;
    info.make = [=] { return make_time_window(o.every.ns, packs_vector<T>()); };
  } else {
    const auto step = o.step > 0 ? o.step : o.count;
    info.rate = {1, step};
    info.lag = o.count;
    info.make = [=] { return make_window(o.count, step, packs_vector<T>()); };
  }
  return {in.graph(), add_shape(in.graph(), {{in.stage(), in.port()}}, std::move(info)), 0};
}

// Keeps the newest `count` items for a consumer that is busy; older ones are dropped and counted.
template <class T>
flow<T> drop_oldest(const flow<T>& in, std::uint64_t count,
                    source_location where = source_location::current()) {
  stage_info info;
  info.kind = "drop_oldest";
  info.where = where;
  info.looks_for_room = info.holds = true;
  info.rate = unknown_rate;
  if (count == 0)
    in.graph().note_mistake(error(error_code::usage, "drop_oldest: keeps no item").at(where));
  info.make = [=] { return make_drop_oldest(count); };
  return {in.graph(), add_shape(in.graph(), {{in.stage(), in.port()}}, std::move(info)), 0};
}
// The newest item.
template <class T>
flow<T> latest(const flow<T>& in, source_location where = source_location::current()) {
  return drop_oldest(in, 1, where);
}

// The first `count` items; then its sources end, unless others need them.
template <class T>
flow<T> first(const flow<T>& in, std::uint64_t count,
              source_location where = source_location::current()) {
  stage_info info;
  info.kind = "first";
  info.where = where;
  info.holds_items = types_that_wait({codec_of<T>()});
  info.rate = unknown_rate;
  info.make = [=] { return make_first(count); };
  return {in.graph(), add_shape(in.graph(), {{in.stage(), in.port()}}, std::move(info)), 0};
}

// What is told of items that stages left out: stages name it in `.dead_letters`.
inline flow<dead_letter> dead_letters(flow_graph& t,
                                      source_location where = source_location::current()) {
  stage_info info;
  info.kind = "dead_letters";
  info.where = where;
  info.inputs = 0;
  info.takes_any = true;
  info.rate = unknown_rate;
  info.make = [] { return make_pass(); };
  return {t, t.add_stage(std::move(info)), 0};
}

// --- loops ---------------------------------------------------------------------------------------

struct feedback_options {
  std::uint64_t credit = 16;  // items that may be under way in the loop
  std::string name{};
};

// What comes back: merge() it with what begins, and close() it with what is to go round again. The
// loop runs in one thread; stages that keep items do not stand in it.
template <class T>
flow<T> feedback(flow_graph& t, const feedback_options& o = {},
                 source_location where = source_location::current()) {
  stage_info info;
  info.name = o.name;
  info.kind = "feedback";
  info.where = where;
  info.inputs = 0;
  info.rate = unknown_rate;
  info.make = [] { return make_pass(); };
  const auto id = t.add_stage(std::move(info));
  t.add_feedback(id, o.credit, where);
  return {t, id, 0};
}
template <class T>
void close(const flow<T>& loop, const flow<T>& in,
           source_location where = source_location::current()) {
  auto& g = loop.graph();
  for (std::uint32_t f = 0; f < g.feedbacks().size(); ++f) {
    if (g.feedbacks()[f].stage != loop.stage()) continue;
    if (g.feedbacks()[f].is_closed)
      g.note_mistake(error(error_code::usage, "close: the loop is closed already").at(where));
    g.feedback_at(f).is_closed = true;
    g.connect(in.stage(), in.port(), loop.stage(), g.add_input(loop.stage()));
    return;
  }
  g.note_mistake(error(error_code::usage, "close: its first flow is none of a feedback").at(where));
}

// --- by key --------------------------------------------------------------------------------------

// As travels_for: the key's function has no members, and the stage's travel.
template <class In, class Out, class K, class F>
std::shared_ptr<const travelling_function> travels_by_key(const stage_options& o,
                                                          const std::pair<K, F>& f) {
  if (o.on.empty()) return nullptr;
  auto t = std::make_shared<travelling_function>(travels_as<In, Out>(f.second));
  t->who.type = &typeid(std::pair<K, F>);
  if (!std::is_empty_v<K>) t->prototype.reset();
  t->keeps_nothing = false;
  using key_type = std::remove_cvref_t<std::invoke_result_t<K&, const In&>>;
  t->keeps_state = has_state<F> && can_travel<key_type>;
  return t;
}

template <class F, class Key>
std::string layout_of_keys() {
  if constexpr (has_state<F> && can_travel<Key>)
    return layout_of<Key>() + ":" + layout_of_state<F>();
  else
    return {};
}
template <class F, class T, class Key>
constexpr const char* why_keys_are_forgotten() {
  if constexpr (has_keep<F> || has_reopen<F>)
    return why_it_forgets_here<F, T>();
  else if constexpr (has_state<F> && can_travel<Key>)
    return nullptr;
  else
    return "what it has learnt of each key is written only where that is its member `state`, and "
           "keys are numbers, texts, containers of such, or structs that list their fields";
}
// An instance of `f` for each key, copied from the one that is given: it sees the items of its key
// only. Where it has finish(), that is called for each key at the end, in the order of the keys;
// finish(key) gets it. With replicas, keys are dealt among them. Keys have std::hash, == and <.
template <class T, class K, class F>
auto partition_by(const flow<T>& in, K key, F f, const stage_options& o = {},
                  source_location where = source_location::current()) {
  constexpr bool fits = std::is_invocable_v<K&, const T&> && takes_items<F, T>;
  static_assert(std::is_invocable_v<K&, const T&>,
                "partition_by: the key's function does not take the items of this flow");
  static_assert(takes_items<F, T>, "partition_by: the stage does not take the items of this flow");
  static_assert(
      !borrows<F>,
      "partition_by: a stage with keys borrows nothing; map() before it, or behind it, may");
  if constexpr (!fits) {
    return in;
  } else {
    using types = keyed<K, F, T>;
    using key_type = typename types::key_type;
    using U = typename types::item;
    static_assert(!std::is_void_v<U>,
                  "partition_by: neither the stage nor its finish() makes items");
    const auto hash = [key](any_value& v) mutable -> std::uint64_t {
      const auto h = std::uint64_t{std::hash<key_type>{}(key(std::as_const(v.get<T>())))};
      return (h ^ h >> 33) * 0xff51afd7ed558ccd >> 20;
    };
    auto both = std::pair<K, F>(std::move(key), std::move(f));
    auto travels = travels_by_key<T, U>(o, both);
    return flow<U>(in.graph(),
                   add_function(in.graph(), in.stage(), in.port(),
                                {"partition_by",
                                 &typeid(F),
                                 stage_maker<keyed_stage<K, F, T>>(std::move(both)),
                                 1,
                                 unknown_rate,
                                 true,
                                 true,
                                 std::move(travels),
                                 makes_at_end_only<F, T>,
                                 {},
                                 {},
                                 why_keys_are_forgotten<F, T, key_type>(),
                                 codec_of<T>(),
                                 codec_of<U>(),
                                 layout_of_keys<F, key_type>()},
                                o, where, hash),
                   0);
  }
}

struct join_options {
  std::uint64_t hold = 65'536;  // items that wait for their partner; one more is an error
  std::string name{};
};

// Items of equal keys, in pairs: each is paired once, with the first one of the other flow that was
// left. What finds no partner by the end is dropped and counted.
template <class A, class B, class KA, class KB>
flow<std::pair<A, B>> join_by(const flow<A>& a, const flow<B>& b, KA key_a, KB key_b,
                              const join_options& o = {},
                              source_location where = source_location::current()) {
  constexpr bool fits = std::is_invocable_v<KA&, const A&> && std::is_invocable_v<KB&, const B&>;
  static_assert(fits, "join_by: a key's function does not take the items of its flow");
  static_assert(!borrows<KA> && !borrows<KB>, "join_by: a key's function borrows nothing");
  using key_type = std::remove_cvref_t<std::invoke_result_t<KA&, const A&>>;
  class join_stage final : public stage {
   public:
    join_stage(KA ka, KB kb, std::uint64_t hold)
        : key_a_(std::move(ka)), key_b_(std::move(kb)), hold_(hold) {}
    bool take(std::uint32_t port, any_value&& v, stage_output& out) override {
      return port == 0 ? pair(key_a_(std::as_const(v.get<A>())), v, a_, b_, 0, out)
                       : pair(key_b_(std::as_const(v.get<B>())), v, b_, a_, 1, out);
    }
    std::uint32_t choose(const stage_output& out) override {
      for (std::uint32_t i = 0; i < 2; ++i)
        if (const auto port = (next_ + i) % 2; out.head(port) != nullptr) return port;
      return no_port;
    }
    bool end(std::uint32_t, stage_output& out) override {
      if (++ended_ == 2) out.count_dropped(held_);
      return false;
    }
    // One of the tables is empty of each key; the order within a key is kept.
    result<tensor> keep(const item_types& types) override {
      auto a = items_of_table(a_), b = items_of_table(b_);
      const auto first = kept_items(a, types[0]), second = kept_items(b, types[1]);
      return saved_by([&](byte_writer& w) {
        write_tensor(w, first);
        write_tensor(w, second);
        w.number(next_);
        w.number(ended_);
      });
    }
    result<void> reopen(const tensor& kept, const item_types& types) override {
      tensor first, second;
      const bool is_read = load_from(kept, [&](byte_reader& r) {
        first = read_tensor(r);
        second = read_tensor(r);
        next_ = r.number<std::uint32_t>() % 2;
        ended_ = r.number<std::uint32_t>();
      });
      auto a = is_read ? items_kept(first, types[0]) : std::nullopt;
      auto b = is_read ? items_kept(second, types[1]) : std::nullopt;
      if (!a || !b) return error(error_code::failed, "what it held is damaged");
      held_ = a->size() + b->size();
      for (auto& it : *a) {
        auto key = key_a_(std::as_const(it.value.template get<A>()));
        a_.emplace(std::move(key), std::move(it.value));
      }
      for (auto& it : *b) {
        auto key = key_b_(std::as_const(it.value.template get<B>()));
        b_.emplace(std::move(key), std::move(it.value));
      }
      return {};
    }

   private:
    using table = std::multimap<key_type, any_value>;
    static std::vector<flow_item> items_of_table(const table& t) {
      std::vector<flow_item> all;
      for (const auto& [key, value] : t) all.push_back({value.copy(), {}});
      return all;
    }
    bool pair(const key_type& key, any_value& v, table& own, table& other, std::uint32_t port,
              stage_output& out) {
      next_ = 1 - port;
      const auto at = other.lower_bound(key);
      if (at == other.end() || key < at->first) {
        if (held_ >= hold_) {
          out.fail({error_code::failed, "as many items wait for a partner as .hold allows (" +
                                            std::to_string(hold_) +
                                            "): are there such with no partner?"});
          return false;
        }
        own.emplace(key, std::move(v));
        ++held_;
        return false;
      }
      auto partner = std::move(at->second);
      other.erase(at);
      --held_;
      auto& first = port == 0 ? v : partner;
      auto& second = port == 0 ? partner : v;
      out.put_last(0, any_value(std::pair<A, B>(std::move(first.template get<A>()),
                                                std::move(second.template get<B>()))));
      return false;
    }
    KA key_a_;
    KB key_b_;
    table a_, b_;
    std::uint64_t hold_, held_ = 0;
    std::uint32_t next_ = 0, ended_ = 0;
  };
  stage_info info;
  info.name = o.name;
  info.kind = "join_by";
  info.where = where;
  info.takes_any = info.holds = true;
  info.holds_items = {held_codec<A>(), held_codec<B>()};
  info.rate = unknown_rate;
  info.make = [key_a, key_b, o] {
    return std::unique_ptr<stage>(std::make_unique<join_stage>(key_a, key_b, o.hold));
  };
  return {a.graph(),
          add_shape(a.graph(), {{a.stage(), a.port()}, {b.stage(), b.port()}}, std::move(info)), 0};
}
// One function for both.
template <class A, class B, class K>
flow<std::pair<A, B>> join_by(const flow<A>& a, const flow<B>& b, K key, const join_options& o = {},
                              source_location where = source_location::current()) {
  return join_by(a, b, key, key, o, where);
}

}  // namespace troupe
