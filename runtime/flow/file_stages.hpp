#pragma once
// Pipelines from files and into files.
//
//   auto paths = files(t, "incoming/*.png");      // what is there now
//   auto later = watch(t, "incoming/*.png");      // and what appears later
//   auto lines = read_lines(t, "logs/*.log.gz");  // plain, gzip or zstd
//   auto rows = read_csv(t, "table.csv", {.has_header = true});
//   write_csv(results, "results.csv");            // whole or not at all
//
// A pattern is a path whose last part may have '*' and '?'; files come in the order of their names.
// Links inside the folder are followed, those that lead out of it are refused (file_options).
// Items are labelled with the path that they come from, which errors and dead letters name.
//
// What is written appears under its name when the flow has ended, whole; before that, and for ever
// where the topology fails, under the name with ".tmp" behind it.
//
// Errors: not_found: nothing matches a pattern, or no such folder; failed: a file cannot be read,
// or is damaged, with its name and where; a disk is full. They are failures of the stage, and its
// policy (.on_error) decides: a reader that skips one goes on with the next file.

#include "troupe/devices/files/byte_source.hpp"
#include "troupe/devices/files/csv.hpp"
#include "troupe/devices/files/tar_reader.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/flow/flow.hpp"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct file_options {
  std::string name{};
  error_policy on_error{};
  std::optional<flow<dead_letter>> dead_letters{};
  // Links that lead out of the pattern's folder are followed, too.
  bool follows_links_out = false;
  // Of watch(): how often the folder is looked at.
  nanoseconds_of every{};
};

// The paths that match, once.
flow<std::string> files(flow_graph& t, const std::string& pattern, const file_options& o = {},
                        source_location where = source_location::current());
// The same, and whatever appears later, once each, when it has not grown between two looks; it ends
// when the topology is stopped. A file that is replaced counts as a new one.
flow<std::string> watch(flow_graph& t, const std::string& pattern, const file_options& o = {},
                        source_location where = source_location::current());

// Lines without their ends, of one file after the other.
flow<std::string> read_lines(flow_graph& t, const std::string& pattern, const file_options& o = {},
                             source_location where = source_location::current());
// Lines of standard input, until it ends.
flow<std::string> read_stdin(flow_graph& t, source_location where = source_location::current());

// Rows as texts; into structs of your own: typed_sources.hpp.
struct csv_line {
  std::vector<std::string> cells;
  // Of the file, if it has a header; the same for all its rows.
  std::shared_ptr<const std::vector<std::string>> header;

  // Of the column of that name, or nullptr.
  const std::string* find(std::string_view column) const noexcept;
  std::size_t size_bytes() const noexcept;
};
flow<csv_line> read_csv(flow_graph& t, const std::string& pattern, const csv_options& csv = {},
                        const file_options& o = {},
                        source_location where = source_location::current());

// Samples of tar archives, as WebDataset groups them: entries of one name up to its first dot.
struct archive_sample : tar_sample {
  std::size_t size_bytes() const noexcept;
};
flow<archive_sample> read_tar(flow_graph& t, const std::string& pattern, const file_options& o = {},
                              source_location where = source_location::current());

// The rows of a .npy file: tensors of its shape without the first dimension.
flow<tensor> read_npy_rows(flow_graph& t, const std::string& pattern, const file_options& o = {},
                           source_location where = source_location::current());

// A stage: the bytes of a file, unpacked where it is packed.
struct file_bytes {
  std::string path;
  std::vector<std::byte> bytes;
  static constexpr auto fields =
      troupe::fields<&file_bytes::path, &file_bytes::bytes>("path", "bytes");
};
struct read_file {
  std::uint64_t bytes_max = std::uint64_t{1} << 30;
  result<file_bytes> operator()(std::string path) const;
};

// 0, 1, 2, ..., one each `every`, until the topology is stopped. One that finds no room is late,
// and those that it missed meanwhile are left out.
flow<std::uint64_t> timer(flow_graph& t, nanoseconds_of every,
                          source_location where = source_location::current());

// --- ends ----------------------------------------------------------------------------------------

// A file that appears under its name when it is whole. Used by the ends below.
class file_being_made {
 public:
  // How far it is, for a checkpoint.
  struct mark {
    std::uint64_t bytes = 0;  // 0: nothing was written
    std::uint64_t hash = 0;   // of them, behind the head
    std::uint64_t items = 0;  // of whoever writes
    bool has_begun = false;   // likewise: its head is there
    static constexpr auto fields =
        troupe::fields<&mark::bytes, &mark::hash, &mark::items, &mark::has_begun>(
            "bytes", "hash", "items", "has_begun");
  };
  // `head_bytes` at its beginning may be written anew (write_at_start).
  explicit file_being_made(std::string path, std::uint64_t head_bytes = 0);
  ~file_being_made();
  // Before anything is there to write: whether its folder may be written.
  result<void> can_be_made() const;
  // It becomes PATH.tmp with the first bytes. The first failure is kept, and told by each call.
  result<void> write(std::string_view text);
  result<void> write_at_start(std::string_view text);
  result<void> finish();
  // All that was written is on the disk, and `m` says what that is.
  result<void> keep(mark& m);
  // It is as it was at that mark: what came later is cut off, and where it had its name already, it
  // has it no more. failed: it is gone, or another one.
  result<void> reopen(const mark& m);
  const std::string& path() const noexcept { return path_; }

 private:
  result<void> open();
  result<void> failed(const std::string& why);
  result<void> flush();
  struct content;
  void was_written(std::string_view text);
  std::string path_, buffer_;
  std::uint64_t head_bytes_ = 0;
  std::unique_ptr<content> content_;  // what stands in the file
  int fd_ = -1;
  std::optional<error> failed_;
};

template <class T>
inline constexpr bool is_cell =
    std::is_convertible_v<T, std::string_view> || std::is_arithmetic_v<T>;
template <class T>
inline constexpr bool is_row =
    is_cell<T> || has_fields<T> || is_tuple<T>::value || std::is_same_v<T, csv_line>;

// The options of an end that writes one file.
stage_options named_writer(flow_graph& g, const stage_options& o, const char* kind,
                           const std::string& path, const source_location& where);

// What a value is in a cell, or in JSON.
//
// With quotes. Of a text that is no UTF-8, each byte that is no ASCII becomes U+FFFD.
std::string json_text(std::string_view s);
template <class T>
std::string cell_text(const T& v) {
  if constexpr (std::is_convertible_v<T, std::string_view>)
    return std::string(std::string_view(v));
  else if constexpr (is_optional<T>::value)
    return v ? cell_text(*v) : std::string();
  else if constexpr (std::is_same_v<T, bool>)
    return v ? "true" : "false";
  else if constexpr (std::is_same_v<T, char>)
    return std::string(1, v);
  else if constexpr (std::is_arithmetic_v<T>)
    return csv_number(v);
  else
    static_assert(std::is_arithmetic_v<T>,
                  "a cell is a text or a number: give the struct `fields` of such");
}
template <class T>
std::string json_value(const T& v) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    return json_text(std::string_view(v));
  } else if constexpr (is_vector<T>::value) {
    std::string text = "[";
    for (const auto& x : v) text += (text.size() > 1 ? "," : "") + json_value(x);
    return text + "]";
  } else if constexpr (is_optional<T>::value) {
    return v ? json_value(*v) : "null";
  } else if constexpr (std::is_same_v<T, char>) {
    return json_text({&v, 1});
  } else if constexpr (std::is_floating_point_v<T>) {
    // JSON has no word for them, and of a "-0" readers drop the sign.
    if (!(v - v == 0)) return "null";
    return v == 0 && std::signbit(v) ? "-0.0" : csv_number(v);
  } else if constexpr (has_fields<T>) {
    std::string text = "{";
    T::fields.each(v, [&](std::string_view name, const auto& m) {
      text += (text.size() > 1 ? "," : "") + json_text(name) + ":" + json_value(m);
    });
    return text + "}";
  } else {
    return cell_text(v);
  }
}
// The cells of a row: fields of a struct, members of a tuple or pair, or one.
template <class T>
std::vector<std::string> row_cells(const T& v) {
  std::vector<std::string> cells;
  if constexpr (has_fields<T>)
    T::fields.each(v, [&](std::string_view, const auto& m) { cells.push_back(cell_text(m)); });
  else if constexpr (is_tuple<T>::value)
    std::apply([&](const auto&... m) { (cells.push_back(cell_text(m)), ...); }, v);
  else if constexpr (std::is_same_v<T, csv_line>)
    cells = v.cells;
  else if constexpr (is_cell<T>)
    cells.push_back(cell_text(v));
  return cells;
}

// A row for each item: with a first one of names, where it is a struct that lists its fields.
template <class T>
void write_csv(const flow<T>& in, const std::string& path, const stage_options& o = {},
               source_location where = source_location::current()) {
  constexpr bool fits = is_row<T>;
  static_assert(fits, "write_csv: an item is no text or number, and lists no `fields` of such");
  struct csv_writer {
    std::shared_ptr<file_being_made> file;
    file_being_made::mark state{};
    result<void> open() { return file->can_be_made(); }
    result<void> keep() { return file->keep(state); }
    result<void> reopen() { return file->reopen(state); }
    result<void> begin() {
      if (std::exchange(state.has_begun, true)) return {};
      if constexpr (has_fields<T>)
        return file->write(csv_row(std::span<const std::string_view>(T::fields.names)));
      else
        return {};
    }
    result<void> operator()(const T& value) {
      if (auto ok = begin(); !ok) return ok;
      const auto cells = row_cells(value);
      const std::vector<std::string_view> views(cells.begin(), cells.end());
      return file->write(csv_row(views));
    }
    result<void> finish() {
      if (auto ok = begin(); !ok) return ok;
      return file->finish();
    }
  };
  const auto named = named_writer(in.graph(), o, "write_csv", path, where);
  for_each(in, csv_writer{std::make_shared<file_being_made>(path)}, named, where);
}

// A line for each item.
template <class T>
void write_json_lines(const flow<T>& in, const std::string& path, const stage_options& o = {},
                      source_location where = source_location::current()) {
  struct json_writer {
    std::shared_ptr<file_being_made> file;
    file_being_made::mark state{};
    result<void> open() { return file->can_be_made(); }
    result<void> keep() { return file->keep(state); }
    result<void> reopen() { return file->reopen(state); }
    result<void> operator()(const T& value) { return file->write(json_value(value) + "\n"); }
    result<void> finish() { return file->finish(); }
  };
  const auto named = named_writer(in.graph(), o, "write_json_lines", path, where);
  for_each(in, json_writer{std::make_shared<file_being_made>(path)}, named, where);
}

// A line for each item, on standard output. Where nobody reads it any more, nobody needs the items.
template <class T>
void print(const flow<T>& in, source_location where = source_location::current());

// All tensors as one .npy file, along a new first dimension; they have one shape and type.
void write_npy(const flow<tensor>& in, const std::string& path, const stage_options& o = {},
               source_location where = source_location::current());
// Each under the last part of its path in `folder`, which must be there; whole or not at all.
void write_files(const flow<file_bytes>& in, const std::string& folder, const stage_options& o = {},
                 source_location where = source_location::current());

// Lines to standard output; false in the result: nobody reads it.
std::unique_ptr<stage> make_print(std::function<std::string(any_value&)> text);

template <class T>
void print(const flow<T>& in, source_location where) {
  stage_info info;
  info.kind = "print";
  info.where = where;
  info.outputs = 0;
  info.rate = unknown_rate;
  info.is_timed = true;
  info.make = [] {
    return make_print([](any_value& v) {
      std::string text;
      for (const auto& c : row_cells(v.get<T>())) text += (text.empty() ? "" : " ") + c;
      return text;
    });
  };
  add_shape(in.graph(), {{in.stage(), in.port()}}, std::move(info));
}

}  // namespace troupe
