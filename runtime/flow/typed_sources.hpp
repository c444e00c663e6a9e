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
// TS-1  An item that cannot be read fails alone, and the next one follows where .on_error goes on:
//       a cell, a line. Where what follows would be misread (a quote that does not end, a line of
//       more than 16 MiB, damaged or cut bytes), the rest of the file is left out with it.
// TS-2  What write_csv() and write_json_lines() write of a struct is read again as an equal one, if
//       its fields are of the types below, its texts UTF-8, and no optional holds a NaN or, in
//       JSON, another null. JSON has no infinities: they are written as null, which is read as NaN.
// TS-3  Memory is that of an item and of its line.
//
// Errors are one line: the file, the line (from 1; of a row that has several, the first), the
// column or key, what was expected and what is there; of bytes, the byte at which they end.

#include "troupe/devices/files/json_slots.hpp"
#include "troupe/runtime/flow/file_stages.hpp"

#include <charconv>
#include <concepts>
#include <limits>
#include <utility>

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

// What a place of T takes, for errors.
template <class T>
constexpr std::string_view expected_of() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, char>)
    return "one character";
  else if constexpr (std::is_floating_point_v<T>)
    return sizeof(T) == 4 ? "a number of 32 bits" : "a number";
  else if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 8   ? "a whole number"
           : sizeof(T) == 4 ? "a whole number of 32 bits"
           : sizeof(T) == 2 ? "a whole number of 16 bits"
                            : "a whole number of 8 bits";
  else
    return sizeof(T) == 8   ? "a whole number of 0 or more"
           : sizeof(T) == 4 ? "a whole number of 0 or more, of 32 bits"
           : sizeof(T) == 2 ? "a whole number of 0 or more, of 16 bits"
                            : "a whole number from 0 to 255";
}

// A number that is the whole text.
template <class T>
bool number_into(std::string_view text, T& into) {
  const auto r = std::from_chars(text.data(), text.data() + text.size(), into);
  return r.ec == std::errc() && r.ptr == text.data() + text.size();
}

// The text of a cell into a field; what was expected, where it does not fit.
template <class T>
std::optional<std::string_view> cell_into(std::string_view cell, T& into) {
  if constexpr (std::is_same_v<T, std::string>) {
    into = cell;
    return std::nullopt;
  } else if constexpr (is_optional<T>::value) {
    using U = typename T::value_type;
    constexpr bool fits = std::is_arithmetic_v<U>;
    static_assert(fits,
                  "read_csv: an optional cell is a number, bool or char: of an empty one "
                  "nobody can say whether it is an empty text or none");
    if constexpr (fits) {
      into.reset();
      return cell.empty() ? std::nullopt : cell_into(cell, into.emplace());
    }
    return std::nullopt;
  } else if constexpr (std::is_same_v<T, char>) {
    if (cell.size() != 1) return expected_of<T>();
    into = cell.front();
    return std::nullopt;
  } else {
    constexpr bool fits = std::is_arithmetic_v<T>;
    static_assert(fits, "read_csv: a cell is a number, bool, char or std::string");
    constexpr std::string_view blanks = " \t";
    cell.remove_prefix(std::min(cell.find_first_not_of(blanks), cell.size()));
    cell = cell.substr(0, cell.find_last_not_of(blanks) + 1);
    bool is_right = false;
    if constexpr (std::is_same_v<T, bool>) {
      into = cell == "true" || cell == "True" || cell == "TRUE" || cell == "1";
      is_right = into || cell == "false" || cell == "False" || cell == "FALSE" || cell == "0";
    } else if constexpr (fits) {
      is_right = number_into(cell, into);
    }
    return is_right ? std::nullopt : std::optional(expected_of<T>());
  }
}

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

// What JSON is read into (json_slots.hpp).
template <class T>
constexpr json_type make_json_type();
template <class T>
inline constexpr json_type json_type_of = make_json_type<T>();

template <class T>
constexpr json_type make_json_type() {
  json_type t;
  if constexpr (std::is_same_v<T, std::string>) {
    t.expected = "a text";
    t.take_text = [](void* at, std::string& v) {
      *static_cast<T*>(at) = std::move(v);
      return true;
    };
  } else if constexpr (std::is_same_v<T, bool>) {
    t.expected = expected_of<T>();
    t.take_bool = [](void* at, bool v) {
      *static_cast<T*>(at) = v;
      return true;
    };
  } else if constexpr (std::is_same_v<T, char>) {
    t.expected = expected_of<T>();
    t.take_text = [](void* at, std::string& v) {
      if (v.size() == 1) *static_cast<T*>(at) = v.front();
      return v.size() == 1;
    };
  } else if constexpr (std::is_floating_point_v<T>) {
    t.expected = expected_of<T>();
    t.take_null = [](void* at) {
      *static_cast<T*>(at) = std::numeric_limits<T>::quiet_NaN();
      return true;
    };
    t.take_signed = [](void* at, std::int64_t v) {
      *static_cast<T*>(at) = static_cast<T>(v);
      return true;
    };
    t.take_unsigned = [](void* at, std::uint64_t v) {
      *static_cast<T*>(at) = static_cast<T>(v);
      return true;
    };
    t.take_floating = [](void* at, double v, std::string_view text) {
      auto& into = *static_cast<T*>(at);
      // Of the text, since a double that is rounded once more may be another float.
      if (number_into(text, into)) return true;
      if (v > double{std::numeric_limits<T>::max()} || v < double{std::numeric_limits<T>::lowest()})
        return false;
      into = static_cast<T>(v);
      return true;
    };
  } else if constexpr (std::is_integral_v<T>) {
    t.expected = expected_of<T>();
    t.take_signed = [](void* at, std::int64_t v) {
      if (std::in_range<T>(v)) *static_cast<T*>(at) = static_cast<T>(v);
      return std::in_range<T>(v);
    };
    t.take_unsigned = [](void* at, std::uint64_t v) {
      if (std::in_range<T>(v)) *static_cast<T*>(at) = static_cast<T>(v);
      return std::in_range<T>(v);
    };
  } else if constexpr (is_optional<T>::value) {
    t.may_miss = true;
    t.take_null = [](void* at) {
      static_cast<T*>(at)->reset();
      return true;
    };
    t.inner = [](void* at) {
      using U = typename T::value_type;
      return json_slot{&static_cast<T*>(at)->emplace(), &json_type_of<U>};
    };
  } else if constexpr (is_vector<T>::value) {
    using U = typename T::value_type;
    constexpr bool fits = !std::is_same_v<U, bool>;
    static_assert(fits,
                  "read_json_lines: the elements of vector<bool> have no place of their own; "
                  "take std::vector<std::uint8_t>");
    t.expected = "a list";
    t.clear = [](void* at) { static_cast<T*>(at)->clear(); };
    if constexpr (fits)
      t.add = [](void* at) {
        return json_slot{&static_cast<T*>(at)->emplace_back(), &json_type_of<U>};
      };
  } else if constexpr (has_fields<T>) {
    t.expected = "an object";
    t.keys = T::fields.names;
    t.member = [](void* at, std::size_t wanted) {
      json_slot slot;
      std::size_t i = 0;
      T::fields.each(*static_cast<T*>(at), [&]<class M>(std::string_view, M& member) {
        if (i++ == wanted) slot = {&member, &json_type_of<M>};
      });
      return slot;
    };
  } else {
    static_assert(has_fields<T>,
                  "read_json_lines: a field is a number, bool, char, std::string, a struct that "
                  "lists its `fields`, or a vector or optional of these");
  }
  return t;
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
