#pragma once
// Pipelines from files whose items have a type: structs from tables and JSON lines, tensors from
// IDX and safetensors files.
//
//   struct reading {
//     std::string who;
//     std::int64_t at = 0;
//     std::optional<double> value;
//     static constexpr auto fields =
//         troupe::fields<&reading::who, &reading::at, &reading::value>("who", "at", "value");
//   };
//   auto rows = read_csv<reading>(t, "in/*.csv.gz", {.on_error = skip(10)});
//   auto same = read_json_lines<reading>(t, "in/*.jsonl");
//   auto images = read_idx_pairs(t, "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz");
//
// Patterns, labels and options are those of file_stages.hpp; all but safetensors may be gzip or
// zstd. Threading and ownership: as all sources; the items own what is in them.
//
// TYS-1  An item that cannot be read fails alone, and the next one follows where .on_error goes on:
//       a cell, a line. Where what follows would be misread (a quote that does not end, a line of
//       more than 16 MiB, damaged or cut bytes), the rest of the file is left out with it.
// TYS-2  What write_csv() and write_json_lines() write of a struct is read again as an equal one,
//       where its fields are of the types below, its texts UTF-8, and no optional holds a NaN or,
//       in JSON, another null. JSON has no infinities: they are written as null, which is read as
//       NaN.
// TYS-3  Memory is that of an item and of its line.
//
// Errors are one line: the file, the line (from 1; of a row that has several, the first), the
// column or key, what was expected and what is there; of bytes, the byte at which they end.

#include "troupe/runtime/flow/field_readers.hpp"
#include "troupe/runtime/flow/file_stages.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

// Rows of tables into T, a struct that lists its fields, each a number, bool, char, std::string, or
// an optional of a number, bool or char. The first row of a file has the names of its columns: they
// stand in any order, others are left out, and one that is missing or stands twice is an error of
// the file. Numbers and bools (true, True, TRUE, 1, ...) may have blanks around them; whole numbers
// have neither point nor exponent, and fit their type. An empty cell is an empty optional. With
// csv.is_ragged, cells that a row lacks are empty ones. csv.has_header needs not be said.
template <class T>
flow<T> read_csv(flow_graph& t, const std::string& pattern, const file_options& o = {},
                 const csv_options& csv = {}, source_location where = source_location::current());

// A JSON object of each line into T: fields are numbers, bool, char, std::string, structs that list
// their fields, and vectors and optionals of these. Keys that are no field are passed over; one
// that is missing is an error, unless it is optional, as null is. Lines of blanks are none.
template <class T>
flow<T> read_json_lines(flow_graph& t, const std::string& pattern, const file_options& o = {},
                        source_location where = source_location::current());

// Images of IDX files (the layout of MNIST): u8 tensors of rows x columns, 0 to 255.
flow<tensor> read_idx(flow_graph& t, const std::string& pattern, const file_options& o = {},
                      source_location where = source_location::current());
struct labelled_image {
  tensor pixels;           // u8, rows x columns
  std::uint8_t label = 0;  // as it is in the file
  static constexpr auto fields =
      troupe::fields<&labelled_image::pixels, &labelled_image::label>("pixels", "label");
};
// The images of one file with their labels in another; both are paths, or patterns that match one
// file each. As many labels as images, or an error before the first.
flow<labelled_image> read_idx_pairs(flow_graph& t, const std::string& images,
                                    const std::string& labels, const file_options& o = {},
                                    source_location where = source_location::current());

struct stored_tensor {
  std::string name;  // in its file
  tensor values;
  static constexpr auto fields =
      troupe::fields<&stored_tensor::name, &stored_tensor::values>("name", "values");
};
// Of each file, in the order of their bytes; one at a time is in memory.
flow<stored_tensor> read_safetensors(flow_graph& t, const std::string& pattern,
                                     const file_options& o = {},
                                     source_location where = source_location::current());

// --- how types become readers --------------------------------------------------------------------

// The cells of a row, one for each field, into an item.
struct refused_cell {
  std::size_t field = 0;
  std::string_view expected;
};
using row_function = std::optional<refused_cell> (*)(std::span<const std::string_view> cells,
                                                     any_value& into);
template <class T>
std::optional<refused_cell> row_into(std::span<const std::string_view> cells, any_value& into) {
  T row{};
  std::optional<refused_cell> refused;
  std::size_t i = 0;
  T::fields.each(row, [&](std::string_view, auto& member) {
    if (!refused)
      if (const auto expected = cell_into(cells[i], member)) refused = {i, *expected};
    ++i;
  });
  if (!refused) into = any_value(std::move(row));
  return refused;
}

struct json_item {
  any_value (*make)() = nullptr;
  json_slot (*slot)(any_value&) = nullptr;
};

std::uint32_t add_csv_rows(flow_graph& t, const std::string& pattern, const file_options& o,
                           const csv_options& csv, std::span<const std::string_view> fields,
                           row_function row, const source_location& where);
std::uint32_t add_json_lines(flow_graph& t, const std::string& pattern, const file_options& o,
                             json_item item, const source_location& where);

template <class T>
flow<T> read_csv(flow_graph& t, const std::string& pattern, const file_options& o,
                 const csv_options& csv, source_location where) {
  constexpr bool fits = has_fields<T> && std::is_default_constructible_v<T>;
  static_assert(fits,
                "read_csv: T is a struct that lists its `fields` and can be made without "
                "arguments");
  if constexpr (fits)
    return {t, add_csv_rows(t, pattern, o, csv, T::fields.names, &row_into<T>, where), 0};
  else
    return {t, 0, 0};
}

template <class T>
flow<T> read_json_lines(flow_graph& t, const std::string& pattern, const file_options& o,
                        source_location where) {
  constexpr bool fits = has_fields<T> && std::is_default_constructible_v<T>;
  static_assert(fits,
                "read_json_lines: T is a struct that lists its `fields` and can be made "
                "without arguments");
  if constexpr (fits) {
    json_item item;
    item.make = [] { return any_value(T{}); };
    item.slot = [](any_value& v) { return json_slot{&v.get<T>(), &json_type_of<T>}; };
    return {t, add_json_lines(t, pattern, o, item, where), 0};
  } else {
    return {t, 0, 0};
  }
}

}  // namespace troupe
