#include "tools/troupe-tool/table.hpp"

#include "troupe/schema/error.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

namespace troupe {

namespace {

constexpr std::size_t gap = 2;

std::size_t total(const std::vector<std::size_t>& widths, const std::vector<bool>& shown) {
  std::size_t sum = 0, count = 0;
  for (std::size_t i = 0; i < widths.size(); ++i)
    if (shown[i]) sum += widths[i], ++count;
  return sum + (count > 0 ? (count - 1) * gap : 0);
}

std::size_t least_width(const column& c, std::size_t width) {
  return c.least == 0 ? width : std::min(width, std::max(c.least, characters(c.title)));
}

// Columns that stay: the rest, at the widths that are wanted at least, would not fit.
std::vector<bool> choose_columns(const std::vector<column>& columns,
                                 const std::vector<std::size_t>& widths, std::size_t width) {
  std::vector<std::size_t> least;
  for (std::size_t i = 0; i < columns.size(); ++i)
    least.push_back(
        std::max(least_width(columns[i], widths[i]), std::min(columns[i].wanted, widths[i])));
  std::vector<bool> shown(columns.size(), true);
  while (width > 0 && total(least, shown) > width) {
    std::optional<std::size_t> next;
    for (std::size_t i = 0; i < columns.size(); ++i)
      if (shown[i] && columns[i].drop_order > (next ? columns[*next].drop_order : 0)) next = i;
    if (!next) break;
    shown[*next] = false;
  }
  return shown;
}

// The widest one that may be shortened gives a character, until the rest fits.
void shorten_columns(const std::vector<column>& columns, const std::vector<bool>& shown,
                     std::vector<std::size_t>& widths, std::size_t width) {
  while (width > 0 && total(widths, shown) > width) {
    std::optional<std::size_t> next;
    for (std::size_t i = 0; i < columns.size(); ++i)
      if (shown[i] && widths[i] > least_width(columns[i], widths[i]) &&
          (!next || widths[i] > widths[*next]))
        next = i;
    if (!next) break;
    --widths[*next];
  }
}

}  // namespace

void table::add(std::vector<std::string> row) {
  expects(row.size() == columns_.size(), "a row has one cell per column");
  rows_.push_back(std::move(row));
}

drawn_table table::draw(std::size_t width) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(characters(columns_[i].title));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], characters(row[i]));
  }
  // Shortening to what is wanted comes before dropping, dropping before shortening further and
  // breaking a line.
  const auto shown = choose_columns(columns_, widths, width);
  shorten_columns(columns_, shown, widths, width);

  drawn_table drawn;
  const auto draw_row = [&](auto&& cell) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (!shown[i]) continue;
      const auto text = shorten(cell(i), widths[i]);
      const std::string padding(widths[i] - characters(text), ' ');
      if (!line.empty()) line.append(gap, ' ');
      line += columns_[i].is_number ? padding + text : text + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    drawn.text += line + '\n';
  };
  draw_row([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_)
    draw_row([&](std::size_t i) -> const std::string& { return row[i]; });
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (!shown[i]) drawn.dropped.push_back(columns_[i].title);
  return drawn;
}

}  // namespace troupe
