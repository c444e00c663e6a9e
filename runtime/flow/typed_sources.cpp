#include "troupe/runtime/flow/typed_sources.hpp"

#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/line_reader.hpp"
#include "troupe/devices/files/safetensors.hpp"
#include "troupe/runtime/flow/each_file.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace troupe {
namespace {

class csv_row_source final : public each_unpacked_file {
 public:
  csv_row_source(std::string pattern, bool follows_out, csv_options o,
                 std::vector<std::string> fields, row_function row)
      : each_unpacked_file(std::move(pattern), follows_out),
        options_(o),
        fields_(std::move(fields)),
        row_(row) {
    options_.has_header = true;
  }

 private:
  // Which column has which field.
  result<void> begin(std::unique_ptr<byte_source> bytes) override {
    reader_.emplace(std::move(bytes), options_);
    const auto header = reader_->header();
    if (!header) return header.error();
    columns_.clear();
    for (const auto& field : fields_) {
      const auto at = std::ranges::find(*header, field);
      if (at == header->end() || std::find(at + 1, header->end(), field) != header->end())
        return error(
            error_code::usage,
            fmt::format("{}: {} '{}' in its header", reader_->name(),
                        at == header->end() ? "no column" : "more than one column", field));
      columns_.push_back(static_cast<std::size_t>(at - header->begin()));
    }
    return {};
  }
  result<bool> read(stage_output& out) override {
    const auto row = reader_->next();
    if (!row) return row.error();
    if (!*row) return false;
    cells_.clear();
    for (const auto c : columns_)
      cells_.push_back(c < (*row)->size() ? (**row)[c] : std::string_view());
    any_value item;
    if (const auto no = row_(cells_, item))
      out.fail({error_code::usage, fmt::format("{}: line {}, column '{}': expected {}, found '{}'",
                                               reader_->name(), reader_->line(), fields_[no->field],
                                               no->expected, shown(cells_[no->field]))});
    else
      out.put(0, std::move(item));
    return true;
  }
  csv_options options_;
  std::vector<std::string> fields_;
  row_function row_;
  std::optional<csv_reader> reader_;
  std::vector<std::size_t> columns_;  // of the fields
  std::vector<std::string_view> cells_;
};

class json_line_source final : public each_unpacked_file {
 public:
  json_line_source(std::string pattern, bool follows_out, json_item item)
      : each_unpacked_file(std::move(pattern), follows_out), item_(item) {}

 private:
  result<void> begin(std::unique_ptr<byte_source> bytes) override {
    reader_.emplace(std::move(bytes));
    return {};
  }
  result<bool> read(stage_output& out) override {
    for (;;) {
      const auto line = reader_->next();
      if (!line) return line.error();
      if (!*line) return false;
      if ((*line)->find_first_not_of(" \t\r") == std::string_view::npos) continue;
      auto item = item_.make();
      const auto name = fmt::format("{}: line {}", reader_->name(), reader_->line());
      if (auto ok = parse_json(**line, item_.slot(item), name); !ok)
        out.fail(std::move(ok.error()));
      else
        out.put(0, std::move(item));
      return true;
    }
  }
  json_item item_;
  std::optional<line_reader> reader_;
};

tensor image_of(std::span<const std::int64_t> sizes, std::span<const std::byte> pixels) {
  auto image = tensor::make({dtype::u8, {sizes[1], sizes[2]}});
  std::memcpy(image.bytes().data(), pixels.data(), pixels.size());
  return image;
}

class idx_source final : public each_unpacked_file {
 public:
  using each_unpacked_file::each_unpacked_file;

 private:
  result<void> begin(std::unique_ptr<byte_source> bytes) override {
    reader_.emplace(std::move(bytes), 3);
    return {};
  }
  result<bool> read(stage_output& out) override {
    const auto sizes = reader_->sizes();
    if (!sizes) return sizes.error();
    const auto row = reader_->next();
    if (!row) return row.error();
    if (!*row) return false;
    out.put(0, any_value(image_of(*sizes, **row)));
    return true;
  }
  std::optional<idx_reader> reader_;
};

class idx_pair_source final : public each_unpacked_file {
 public:
  idx_pair_source(std::string images, bool follows_out, std::string labels)
      : each_unpacked_file(images, follows_out),
        images_pattern_(std::move(images)),
        labels_pattern_(std::move(labels)),
        follows_out_(follows_out) {}

 private:
  // Both files must be one: of several, nobody knows which belong together.
  result<std::string> only_one(const std::string& pattern) const {
    auto found = matching(pattern, follows_out_);
    if (!found) return std::move(found.error());
    if (found->size() != 1)
      return error(found->empty() ? error_code::not_found : error_code::usage,
                   found->empty()
                       ? fmt::format("{}: no such file", pattern)
                       : fmt::format("{}: matches {} files, expected one", pattern, found->size()));
    if (found->front().why) return *found->front().why;
    return std::move(found->front().path);
  }
  result<void> begin(std::unique_ptr<byte_source> bytes) override {
    if (auto images = only_one(images_pattern_); !images) return std::move(images.error());
    const auto path = only_one(labels_pattern_);
    if (!path) return path.error();
    auto labels = open_any(*path);
    if (!labels) return std::move(labels.error());
    const auto images_name = std::string(bytes->name());
    images_.emplace(std::move(bytes), 3);
    labels_.emplace(std::move(*labels), 1);
    const auto of_images = images_->sizes();
    if (!of_images) return of_images.error();
    const auto of_labels = labels_->sizes();
    if (!of_labels) return of_labels.error();
    if (of_images->front() != of_labels->front())
      return error(
          error_code::usage,
          fmt::format("{} has {} images, but {} has {} labels: they do not belong together",
                      images_name, of_images->front(), *path, of_labels->front()));
    return {};
  }
  result<bool> read(stage_output& out) override {
    const auto image = images_->next();
    if (!image) return image.error();
    const auto label = labels_->next();
    if (!label) return label.error();
    if (!*image || !*label) return false;
    out.put(0, any_value(labelled_image{image_of(*images_->sizes(), **image),
                                        std::to_integer<std::uint8_t>((**label)[0])}));
    return true;
  }
  std::string images_pattern_, labels_pattern_;
  bool follows_out_;
  std::optional<idx_reader> images_, labels_;
};

class safetensors_source final : public each_file {
 public:
  using each_file::each_file;

 private:
  result<void> open(const std::string& path) override {
    std::error_code why;
    const auto bytes = std::filesystem::file_size(path, why);
    if (why) return error(error_code::failed, fmt::format("{}: {}", path, why.message()));
    auto file = open_file(path);
    if (!file) return std::move(file.error());
    reader_.emplace(std::move(*file), bytes);
    return {};
  }
  result<bool> read(stage_output& out) override {
    auto one = reader_->next();
    if (!one) return std::move(one.error());
    if (!*one) return false;
    out.put(0, any_value(stored_tensor{std::move((*one)->name), std::move((*one)->values)}));
    return true;
  }
  std::optional<safetensors_reader> reader_;
};

}  // namespace

std::uint32_t add_csv_rows(flow_graph& t, const std::string& pattern, const file_options& o,
                           const csv_options& csv, std::span<const std::string_view> fields,
                           row_function row, const source_location& where) {
  return add_file_source<csv_row_source>(t, "read_csv", pattern, o, where, csv,
                                         std::vector<std::string>(fields.begin(), fields.end()),
                                         row);
}
std::uint32_t add_json_lines(flow_graph& t, const std::string& pattern, const file_options& o,
                             json_item item, const source_location& where) {
  return add_file_source<json_line_source>(t, "read_json_lines", pattern, o, where, item);
}

flow<tensor> read_idx(flow_graph& t, const std::string& pattern, const file_options& o,
                      source_location where) {
  return {t, add_file_source<idx_source>(t, "read_idx", pattern, o, where), 0};
}
flow<labelled_image> read_idx_pairs(flow_graph& t, const std::string& images,
                                    const std::string& labels, const file_options& o,
                                    source_location where) {
  return {t, add_file_source<idx_pair_source>(t, "read_idx_pairs", images, o, where, labels), 0};
}
flow<stored_tensor> read_safetensors(flow_graph& t, const std::string& pattern,
                                     const file_options& o, source_location where) {
  return {t, add_file_source<safetensors_source>(t, "read_safetensors", pattern, o, where), 0};
}

}  // namespace troupe
