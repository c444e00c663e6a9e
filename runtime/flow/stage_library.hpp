#pragma once
// Stages that run on other nodes: a program that names a node in `.on` and the node both have the
// library in which they stand, linked or loaded (troupe-node --load).
//
//   const troupe::stage_library& word_stages() {
//     static const troupe::stage_library stages(
//         "words", "1.0", {troupe::stage_of<tokenise>("tokenise"),
//                          troupe::stage_of<&longest>("longest"),
//                          troupe::stage_by_key<count_words, by_word>("count_words")});
//     return stages;
//   }
//   TROUPE_STAGE_LIBRARY(word_stages())     // in the file that becomes a shared library
//
//   t.use(word_stages());
//   auto words = map(lines, tokenise{}, {.replicas = 3, .on = "/job:worker"});
//
// Items are numbers, texts, tensors, vectors, arrays, optionals, maps and tuples of such, and
// structs that list their fields (value_traits.hpp). Nodes compare the library's name and version,
// and the layouts of items and members, with the program's: change the version when a function
// computes something else.
//
// The function itself does not travel, its members do: those that it lists as fields
// (value_traits.hpp), and `state`. Where what it learns from items is its member `state`, that
// survives its node.
//
// STL-1  The name of a stage is unique in its library, and so is its function with its items.
// STL-2  `abi` stays the first member of stage_library_file: it is looked at before anything else
//        of
//       a file.
// Threading: constant once made. Ownership: a library outlives the topologies that use it; one that
// was loaded stays for the life of the process.

#include "troupe/runtime/flow/function_id.hpp"
#include "troupe/runtime/flow/function_stage.hpp"
#include "troupe/runtime/flow/keyed_stage.hpp"
#include "troupe/schema/version.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

using stage_factory = std::function<std::unique_ptr<stage>()>;

struct library_stage {
  std::string name;
  function_id who;
  const value_codec* in = nullptr;
  const value_codec* out = nullptr;  // null: nothing comes of it
  std::string members;               // of its function: their layout
  // Of the function's members as they came; null: these bytes are not theirs.
  std::function<stage_factory(std::span<const std::byte> prototype)> make;
};

class stage_library {
 public:
  stage_library(std::string name, std::string version, std::vector<library_stage> stages)
      : name_(std::move(name)), version_(std::move(version)), stages_(std::move(stages)) {}
  const std::string& name() const noexcept { return name_; }
  const std::string& version() const noexcept { return version_; }
  const std::vector<library_stage>& stages() const noexcept { return stages_; }
  const library_stage* find(std::string_view stage) const noexcept;
  // With those items, or else with any.
  const library_stage* find(const function_id& who) const noexcept;

 private:
  std::string name_, version_;
  std::vector<library_stage> stages_;
};

// What is wrong with it: a name that is empty, or that two of its stages have. usage.
result<void> check_library(const stage_library& l);

// --- what a library is made of -------------------------------------------------------------------

template <class Call>
struct argument_of_call {};
template <class R, class A>
struct argument_of_call<R (*)(A)> {
  using type = std::remove_cvref_t<A>;
};
template <class R, class A>
struct argument_of_call<R (*)(A) noexcept> : argument_of_call<R (*)(A)> {};
template <class R, class C, class A>
struct argument_of_call<R (C::*)(A)> : argument_of_call<R (*)(A)> {};
template <class R, class C, class A>
struct argument_of_call<R (C::*)(A) const> : argument_of_call<R (*)(A)> {};
template <class R, class C, class A>
struct argument_of_call<R (C::*)(A) noexcept> : argument_of_call<R (*)(A)> {};
template <class R, class C, class A>
struct argument_of_call<R (C::*)(A) const noexcept> : argument_of_call<R (*)(A)> {};

template <class F>
struct argument_of : argument_of_call<decltype(&F::operator())> {};
template <class F>
  requires is_function_pointer<F>
struct argument_of<F> : argument_of_call<F> {};

template <class Stage, class In, class Out, class Function>
library_stage make_library_stage(std::string name, function_id who, Function function) {
  static_assert(can_travel<In>,
                "stage library: the stage's items do not go over a wire; let them be numbers, "
                "texts, tensors, containers of such, or structs that list their fields");
  library_stage s{std::move(name), who, codec_of<In>(), nullptr, {}, {}};
  if constexpr (!std::is_void_v<Out>) {
    static_assert(can_travel<Out>,
                  "stage library: what the stage makes does not go over a wire; let it be numbers, "
                  "texts, tensors, containers of such, or structs that list their fields");
    s.out = codec_of<Out>();
  }
  s.make = [function = std::move(function)](std::span<const std::byte> prototype) -> stage_factory {
    auto f = function(prototype);
    if (!f) return {};
    return stage_maker<Stage>(std::move(*f));
  };
  return s;
}

template <class F>
library_stage with_members(library_stage s) {
  s.members = members_of<F>();
  return s;
}
// A struct with operator(), for map or for_each. T: its items, where they cannot be told by it.
template <class F, class T = typename argument_of<F>::type>
library_stage stage_of(std::string name) {
  constexpr bool is_told = tells_members<F> && std::is_default_constructible_v<F>;
  static_assert(
      is_told,
      "stage library: the stage has members besides `state`; list them as fields, and let "
      "it be made without arguments");
  if constexpr (is_told)
    return with_members<F>(
        make_library_stage<function_stage<F, T>, T, typename stage_items<F, T>::type>(
            std::move(name), {&typeid(F), nullptr, &typeid(T)},
            [](std::span<const std::byte> p) { return function_of<F>(p); }));
  else
    return {};
}
// A function, for map or for_each.
template <auto F>
  requires is_function_pointer<decltype(F)>
library_stage stage_of(std::string name) {
  using T = typename argument_of<decltype(F)>::type;
  return make_library_stage<function_stage<decltype(F), T>, T,
                            typename stage_items<decltype(F), T>::type>(
      std::move(name), id_of<T>(F), [](std::span<const std::byte> p) {
        return p.empty() ? std::optional<decltype(F)>(F) : std::nullopt;
      });
}
// For partition_by: a struct, and one without members that says the key.
template <class F, class Key, class T = typename argument_of<F>::type>
library_stage stage_by_key(std::string name) {
  static_assert(std::is_empty_v<Key>, "stage library: the key's function has members");
  return with_members<F>(
      make_library_stage<keyed_stage<Key, F, T>, T, typename keyed<Key, F, T>::item>(
          std::move(name), {&typeid(std::pair<Key, F>), nullptr, &typeid(T)},
          [](std::span<const std::byte> p) {
            auto f = function_of<F>(p);
            return f ? std::optional(std::pair<Key, F>(Key{}, std::move(*f))) : std::nullopt;
          }));
}

// --- libraries in files --------------------------------------------------------------------------

// Equal for two builds whose types of this interface look alike in memory.
std::uint64_t stage_library_abi_of(std::uint64_t headers) noexcept;
namespace stage_library_detail {
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  for (int i = 0; i < 8; ++i, number >>= 8U) hash = (hash ^ (number & 0xffU)) * 0x100000001b3U;
  return hash;
}
constexpr std::uint64_t headers() {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : std::string_view(__VERSION__))
    hash = mixed(hash, static_cast<unsigned char>(c));
#ifdef __SANITIZE_ADDRESS__
  hash = mixed(hash, 1);
#endif
#ifdef __SANITIZE_THREAD__
  hash = mixed(hash, 2);
#endif
#ifdef _GLIBCXX_DEBUG
  hash = mixed(hash, 3);
#endif
  hash = mixed(hash, static_cast<std::uint64_t>(__cplusplus));
  for (const auto size : {sizeof(library_stage), sizeof(stage_library), sizeof(stage),
                          sizeof(stage_output), sizeof(any_value), sizeof(flow_item),
                          sizeof(tensor), sizeof(error), sizeof(std::string), sizeof(value_codec)})
    hash = mixed(hash, size);
  return hash;
}
}  // namespace stage_library_detail

struct stage_library_file {
  std::uint64_t abi = 0;
  const stage_library* library = nullptr;
};
inline constexpr const char* stage_library_entry = "troupe_stage_library";
using stage_library_entry_function = const stage_library_file* (*)();
inline std::uint64_t stage_library_abi() noexcept {
  return stage_library_abi_of(stage_library_detail::headers());
}

#define TROUPE_STAGE_LIBRARY(...)                                                              \
  extern "C" __attribute__((visibility("default"))) const troupe::stage_library_file*          \
  troupe_stage_library() {                                                                     \
    static const troupe::stage_library_file file{troupe::stage_library_abi(), &(__VA_ARGS__)}; \
    return &file;                                                                              \
  }

}  // namespace troupe
