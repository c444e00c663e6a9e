#include "apps/word_stages/word_stages.hpp"

#include <cctype>
#include <utility>

using namespace troupe;

generator<std::string> words_of(std::string line) {
  std::string word;
  for (const auto c : line + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      co_yield std::exchange(word, {});
    }
  }
}

const stage_library& word_stages() {
  static const stage_library stages(
      "word_stages", "1.0",
      {stage_of<&words_of>("words_of"), stage_by_key<word_counter, by_word>("word_counter")});
  return stages;
}

TROUPE_STAGE_LIBRARY(word_stages())
