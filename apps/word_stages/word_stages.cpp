#include "apps/word_stages/word_stages.hpp"

#include <cctype>
#include <cstddef>
#include <utility>

using namespace troupe;

generator<std::string> words_of(std::string line) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && std::isalnum(static_cast<unsigned char>(line[i])) != 0) {
      line[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(line[i])));
      continue;
    }
    if (i > begin) {
      auto word = line.substr(begin, i - begin);
      co_yield std::move(word);
    }
    begin = i + 1;
  }
}

const stage_library& word_stages() {
  static const stage_library stages(
      "word_stages", "1.0",
      {stage_of<&words_of>("words_of"), stage_by_key<word_counter, by_word>("word_counter")});
  return stages;
}

TROUPE_STAGE_LIBRARY(word_stages())
