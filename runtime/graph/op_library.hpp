#pragma once
// A library of a user's own ops: shape rules, gradients and kernels, added by the same calls as
// those that ship with Troupe.
//
//   static void add(troupe::op_table& ops, troupe::kernel_table& kernels) {
//     ops.add("swish_gate", {.inputs = 2, .shapes = shapes_of, .gradient = gradient_of});
//     kernels.add("swish_gate", {make_kernel});
//   }
//   TROUPE_OP_LIBRARY({.name = "own_ops", .version = "1.0", .add = add})
//
// As a shared library it is loaded by nodes (`troupe-node --load`) and programs
// (session_options::load); what is linked into a program goes there by its address
// (session_options::libraries). apps/own_op/ is an example, with a page that shows the build
// outside of this tree.
//
// A source (is_source, no operands) that reads has the attributes "part" (0) and "parts" (1), and
// says so by having them: in a training each worker's copy gets its own number and how many there
// are, and "global_scale": whether gradients are added up (1) or applied one by one (0). What it
// reads follows from part, parts and the tag's step alone, so that steps can be made again. An op
// with an attribute "rows" gets "part" as well. One program may link several libraries: the macro
// is for one; others are objects, static const op_library other{.name = .., ..}, given by address.
//
// A plan names each library whose ops it uses; a node that has not the same name, version and ABI
// refuses it, and gets no such work. So equal versions must mean equal results: whoever changes
// what an op computes changes the version.
//
// OL-1  Of a library with another ABI nothing is read but `abi`, and nothing is called.
// OL-2  A library is added whole or not at all: an error leaves both tables as they were.
// OL-3  No op is replaced, neither one that ships with Troupe nor one of another library.
//
// Across the boundary. A shared library has a copy of its own of the parts of Troupe that it uses,
// and no symbol but the entry is visible (some linkers keep those of the standard library, of which
// there is one), so nothing may depend on there being one copy: Troupe has no globals, types are
// compared by name, memory comes from the one allocator of the process, and exceptions of the
// standard library pass. What throws in a kernel or a rule on a node ends the actor, and the job
// with its text. A row that says is_elementwise needs a kernel that is a host::elementwise_kernel
// (devices/host/loops/elementwise_tiles.hpp), since it may be fused. Static objects of the library
// are made when it is loaded; an exception there, or a crash anywhere, ends the process.
// Threading: add() is called once, in the thread that starts the process. Ownership: a loaded
// library stays for the life of the process.

#include "troupe/devices/kernel.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/plan/plan.hpp"
#include "troupe/schema/library_id.hpp"
#include "troupe/schema/version.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Goes up with every change that a library can notice and that sizes do not show: an order of
// virtual functions, a meaning.
inline constexpr std::uint32_t op_interface = 1;

namespace op_library_detail {

constexpr std::uint64_t mixed(std::uint64_t hash, std::string_view text) {  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return (hash ^ 0xffU) * 0x100000001b3U;
}
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  for (int i = 0; i < 8; ++i, number >>= 8U) hash = (hash ^ (number & 0xffU)) * 0x100000001b3U;
  return hash;
}
template <class... T>
constexpr std::uint64_t with_layouts(std::uint64_t hash) {
  ((hash = mixed(mixed(hash, sizeof(T)), alignof(T))), ...);
  return hash;
}

constexpr std::uint64_t build_hash(std::uint32_t interface) {
  auto hash = mixed(0xcbf29ce484222325U, interface);
#ifdef __clang__
  hash = mixed(hash, "clang");
#endif
  hash = mixed(hash, __VERSION__);
  hash = mixed(hash, static_cast<std::uint64_t>(__cplusplus));
#ifdef _GLIBCXX_USE_CXX11_ABI
  hash = mixed(hash, static_cast<std::uint64_t>(_GLIBCXX_USE_CXX11_ABI));
#endif
#ifdef __GLIBCXX__
  hash = mixed(hash, static_cast<std::uint64_t>(__GLIBCXX__));
#endif
#ifdef _GLIBCXX_DEBUG
  hash = mixed(hash, "checked containers");
#endif
#ifdef __SANITIZE_ADDRESS__
  hash = mixed(hash, "address sanitizer");
#endif
#ifdef __SANITIZE_THREAD__
  hash = mixed(hash, "thread sanitizer");
#endif
  return with_layouts<tensor, tensor_spec, shape, dim, dtype, attributes, attributes::value,
                      shared_bytes, tag, op_row, op_table, kernel_row, kernel_table, kernel, graph,
                      graph_node, value, error, result<void>, result<std::vector<tensor_spec>>,
                      library_id, source_location, std::string, std::vector<tensor_spec>>(hash);
}

}  // namespace op_library_detail

// Equal for two builds whose types of this interface look alike in memory: compiler and standard
// library, sizes, and Troupe's version, which is that of the library linked, while the rest is that
// of the headers.
inline std::uint64_t op_library_abi(std::uint32_t interface = op_interface) noexcept {
  constexpr auto own = op_library_detail::build_hash(op_interface);
  return op_library_detail::mixed(
      interface == op_interface ? own : op_library_detail::build_hash(interface), version());
}

struct op_library {
  std::uint64_t abi = op_library_abi();  // OL-1: stays the first member for ever
  const char* name = nullptr;            // 1..library_text_bytes_max bytes, as is the version
  const char* version = nullptr;
  void (*add)(op_table& ops, kernel_table& kernels) = nullptr;  // gets empty tables; may throw
};

}  // namespace troupe

// The entry of a shared library; and, in a program, of the library that is linked into it, for
// session_options::libraries.
extern "C" __attribute__((visibility("default"))) const troupe::op_library* troupe_op_library();

namespace troupe {

inline constexpr const char* op_library_entry = "troupe_op_library";
using op_library_entry_function = const op_library* (*)();

#define TROUPE_OP_LIBRARY(...)                                                \
  extern "C" __attribute__((visibility("default"))) const troupe::op_library* \
  troupe_op_library() {                                                       \
    static const troupe::op_library library __VA_ARGS__;                      \
    return &library;                                                          \
  }

// "own_ops 1.0".
std::string to_string(const library_id& l);

// Adds what the library has to both tables; `from` names it in errors: a file, or nothing. Errors
// (usage): another ABI, no name, a name that another library has, an op that is taken, without a
// shape rule, or without a kernel, a kernel without an op, what add() throws.
result<void> add_ops(op_table& ops, kernel_table& kernels, const op_library& library,
                     std::string_view from = {});

// Of a table, by name.
std::vector<library_id> libraries_of(const op_table& ops);
// Those that ops of these types come from, with these ops; by name.
std::vector<planned_library> libraries_of(std::span<const std::string_view> types,
                                          const op_table& ops);

// What is wrong for `needed` with somebody who has `present`: "has own_ops 0.9", ...; empty:
// nothing.
std::string lack_of(const library_id& needed, std::span<const library_id> present);
// Of the first of them that is lacking: "op 'swish_gate' needs library own_ops 1.0, and n1 has no
// library of that name ..."; empty: none.
std::string lack_of(std::span<const planned_library> needed, std::span<const library_id> present,
                    std::string_view who);
// A node's own look at a plan: libraries, and that each op of task `own` is here what the plan
// says.
std::string lack_of(const plan& p, std::uint32_t own, const op_table& ops, std::string_view who);

}  // namespace troupe
