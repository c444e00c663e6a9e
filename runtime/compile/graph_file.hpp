#pragma once
// Graphs as files: what a program has built, saved before any pass has seen it, so that it can be
// looked at (`troupe plan`), kept, and compiled by another program. schema/graph.capnp has the
// format.
//
//   auto saved = troupe::save_graph(disk, "model.troupe", g, {.name = "mnist", .loss = loss});
//   auto back = troupe::load_graph(disk, "model.troupe", ops);     // back->graph, back->use.loss
//
// A file is anybody's: whatever it holds, reading gives a graph or an error value of one line that
// no terminal obeys, which names the op and the user's line where one is to blame. Nothing that a
// graph names (data, texts) is opened.
//
// GF-1  A graph comes back as it was: nodes with types, names, attributes, operands, specs,
//       devices, lines and initializers, averages, updates, and what it is for. Saved again it has
//       the same bytes, and it compiles to the same plan. What cannot come back so is not saved: an
//       error.
// GF-2  Every op of a graph that was read went through graph::add(), so that its shape rule holds
//       here; the specs that the file has are those that the rule gives.
// GF-3  A file that was cut, that has a byte too much or a bit that has flipped is an error.
// GF-4  A file of a newer format is an error that says so, before anything else of it is looked at.
// GF-5  Memory is taken in proportion to the file.
// GF-6  A path has the file that it had or the new one, whole. What is there and no graph stays.
//
// Threading: any thread; a graph belongs to one.

#include "troupe/devices/files/disk.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/graph.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/schema/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

inline constexpr std::uint32_t graph_file_version = 1;
inline constexpr std::size_t graph_file_bytes_max = plan_bytes_max;
inline constexpr std::size_t graph_nodes_max = plan_actors_max, graph_fetches_max = 65'536;

struct graph_fetch {
  std::string name;
  value at;
};

// How a graph was to be trained, but for the places.
struct graph_training {
  training_spec spec{};
  compile_options options{};  // its name is graph_use's, its report none
};

// What a graph is for: a loss to train, or values to fetch, or both.
struct graph_use {
  std::string name = "job";  // of jobs that are made of it
  std::optional<value> loss{};
  std::vector<graph_fetch> fetches{};
  std::optional<graph_training> training{};  // for whoever compiles it and says nothing else
};

struct saved_graph {
  std::unique_ptr<troupe::graph> graph;
  graph_use use;  // its values are those of `graph`
};

// usage: no root, a root of another graph, a graph with an error, or too large; or GF-1: an eager's
// graph, whose shapes are those of the moment.
result<std::vector<std::byte>> encode_graph(const graph& g, const graph_use& use);
// usage: see GF-2..GF-5. `ops` outlives the graph.
result<saved_graph> decode_graph(std::span<const std::byte> bytes, const op_table& ops);
bool is_graph_file(std::span<const std::byte> bytes) noexcept;

// Errors are the disk's, or as above with the path in front. One writer of a path at a time.
result<void> save_graph(disk& d, const std::string& path, const graph& g, const graph_use& use);
result<saved_graph> load_graph(disk& d, const std::string& path, const op_table& ops);

}  // namespace troupe
